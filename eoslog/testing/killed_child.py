"""Child process that is killed at a chosen moment of what it does."""

import logging
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from eoslog.testing.fault import FaultUnavailableError

# Each with what did not come where it is not reached.
MOMENTS = {
    "markers": "it ended no transaction with a record",
    "adoption": "it committed no staged job with a file",
}


_CALLED = "called"


class ChildFailedError(AssertionError):
    """The function of a child process raised an error, hung, or could not be called."""


def run_and_die(
    moment: str,
    function: Callable[..., object],
    arguments: tuple[Any, ...],
    start_method: str,
    timeout_s: float,
) -> bool:
    """Call a function in a child process; True if it was killed at the moment, False if it
    returned. Raises ChildFailedError.
    """
    context: Any = multiprocessing.get_context(start_method)
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(theirs, moment, function, arguments), daemon=True)
    heard: list[str | None] = []
    try:
        _start(child, function, start_method)
        theirs.close()
        for _ in range(2):
            if not ours.poll(timeout_s):
                raise ChildFailedError(f"the child did not end within {timeout_s} s")
            heard.append(_heard(ours))
        child.join(timeout_s)
    finally:
        if child.pid is not None:
            child.kill()
            child.join()
        ours.close()
    was_called, said = heard[0] == _CALLED, heard[1]
    if was_called and said is None and child.exitcode == -signal.SIGKILL:
        return True
    if was_called and said == "":
        return False
    if not was_called:
        hint = f"with start_method={start_method!r} its module must be one that can be imported"
        raise ChildFailedError(f"the child could not call {function!r}: {hint}\n{heard[0] or ''}")
    raise ChildFailedError(
        f"the child failed:\n{said}" if said else f"the child ended with {child.exitcode}"
    )


def _start(child: Any, function: Callable[..., object], start_method: str) -> None:
    with warnings.catch_warnings():
        # The stores of this process have threads; none of them is in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child.start()
        except OSError:
            raise
        except Exception as error:  # Of what cannot be pickled; each kind has its own.
            raise ChildFailedError(
                f"{function!r} or an argument cannot be passed to the child: {error}; with "
                f"start_method={start_method!r} it must be a function of a module"
            ) from error


def _heard(connection: Connection) -> str | None:
    """Return the text that the child sent; None if it sent nothing."""
    try:
        text: str = connection.recv()
    except EOFError:
        return None
    return text


def _work(
    connection: Connection,
    moment: str,
    function: Callable[..., object],
    arguments: tuple[Any, ...],
) -> None:
    try:
        (_die_before_markers if moment == "markers" else _die_before_adoption)()
        connection.send(_CALLED)
        function(*arguments)
    except BaseException:
        connection.send(traceback.format_exc())
    else:
        connection.send("")


def _die_before_markers() -> None:
    """Have this process die where a transaction that is decided is to be completed."""
    from eoslog.bindings import call_faults

    if not call_faults.die_before_markers():
        raise FaultUnavailableError("the completion of transactions cannot be taken over here")


class _Death(logging.Handler):
    """Kills the process with the message of a decision."""

    def emit(self, record: logging.LogRecord) -> None:
        if "is decided" in record.msg:
            os.kill(os.getpid(), signal.SIGKILL)


def _die_before_adoption() -> None:
    """Have this process die where a staged job that is decided is to be adopted."""
    log = logging.getLogger("eoslog.staging.commit")
    log.setLevel(logging.DEBUG)
    log.addHandler(_Death())
