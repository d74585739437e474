"""The start of a thread, which a limit of the process refuses by name, and never waits for in vain.

`Thread.start` waits until the new thread says that it runs. Where that one finds no memory for its
very first steps it dies without a word, and whoever started it waits for ever. So a thread of its
own starts it here, and is waited for no longer than START_TIMEOUT_S.
"""

import _thread
import threading

from eoslog.errors import OutOfMemoryError

START_TIMEOUT_S = 2.0


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises OutOfMemoryError where the system gives no memory, or the process may have no more
    threads (`ulimit -u`, the `pids` limit of a container). A thread may come late then, where an
    overloaded machine is the reason: its work looks first whether it is still wanted.
    """
    begun = _thread.allocate_lock()
    begun.acquire()
    failures: list[BaseException] = []
    try:
        _thread.start_new_thread(_start, (thread, begun, failures))
    except (RuntimeError, MemoryError) as error:
        raise _refused(thread, error) from error
    if not begun.acquire(timeout=START_TIMEOUT_S):
        raise _refused(thread, f"it did not begin within {START_TIMEOUT_S:g} s")
    for failure in failures:
        if isinstance(failure, (RuntimeError, MemoryError)):
            raise _refused(thread, failure) from failure
        raise failure


def _start(
    thread: threading.Thread, begun: _thread.LockType, failures: list[BaseException]
) -> None:
    try:
        thread.start()
    except BaseException as error:
        failures.append(error)
    finally:
        begun.release()


def _refused(thread: threading.Thread, reason: object) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"the thread {thread.name!r} cannot be started: {reason}; see the limits of the process on "
        "its memory and threads"
    )
