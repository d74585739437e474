# cython: language_level=3
"""Clearing up that no interrupt keeps from its end.

What an interrupt (Ctrl-C) left is cleared up in an `except`, which another one may cut off: what
was to be freed is then held for as long as somebody keeps the exception.
"""

cdef enum:
    TRIES_MAX = 20


def clear_up(call not None, /):
    """Call it until it returns, which it does not while it is interrupted; it may be called again.

    Raises what the last failed try raised, also if it was done then.
    """
    cdef int tries = 0
    error = None
    while tries < TRIES_MAX:
        tries += 1
        try:
            call()
        except BaseException as raised:
            error = raised
        else:
            break
    if error is not None:
        raise error
