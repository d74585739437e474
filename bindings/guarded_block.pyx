# cython: language_level=3, binding=True
"""Blocks written as generators, like those of contextlib, that no interrupt leaves half entered.

A signal's handler may raise between any two steps of Python code. contextlib's own steps are such:
an interrupt there leaves the generator standing at its yield, with the lock that it holds, for as
long as somebody keeps the exception. Here the generator is driven by C: neither between its yield
and the block, nor between the block and its going on, is there a step of Python.
"""

import functools

cimport cython

cdef object _END = object()


@cython.final
cdef class GuardedBlock:
    """One block; its generator runs up to the yield on entering, and from there on leaving."""

    cdef object _generator

    def __enter__(self):
        value = next(self._generator, _END)
        if value is _END:
            raise RuntimeError("generator didn't yield")
        return value

    def __exit__(self, kind, error, traceback):
        if kind is None:
            if next(self._generator, _END) is _END:
                return False
            self._generator.close()
            raise RuntimeError("generator didn't stop")
        if error is None:
            error = kind()
        try:
            self._generator.throw(error)
        except BaseException as raised:
            if raised is not error:
                if isinstance(raised, StopIteration):
                    return True  # The generator ended in spite of it.
                if not (isinstance(error, StopIteration) and isinstance(raised, RuntimeError)
                        and raised.__cause__ is error):
                    raise
            # Raised on by whoever called this, with the traceback that it had.
            error.__traceback__ = traceback
            return False
        self._generator.close()
        raise RuntimeError("generator didn't stop after throw()")


# What it makes is bound to an object as a function of Python is: hence the directive at the top.
def guarded_block(function, /):
    """Make blocks of a function that is a generator: as `contextlib.contextmanager` does."""

    @functools.wraps(function)
    def made(*arguments, **named):
        cdef GuardedBlock block = GuardedBlock.__new__(GuardedBlock)
        block._generator = function(*arguments, **named)
        return block

    return made
