"""Faults of the calls that this process makes to the kernel, while a block runs.

The calls are taken over in the compiled modules themselves, from the first fault on until the last
one has ended; otherwise nothing of it exists.

Invariant: outside of all blocks no call is taken over.
"""

import os
import pkgutil
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Self

from eoslog.common.topic_partition import TopicPartition

_lock = threading.RLock()
_users = 0  # Blocks that need calls to be taken over; of the process in _process_id.
_process_id = 0


class FaultNotFiredError(AssertionError):
    """A fault of a test had no effect: what it was to break was never called."""


class FaultUnavailableError(RuntimeError):
    """Calls cannot be taken over here: on another processor, or where the system forbids it."""


class Fault:
    """A fault of calls, which acts while its block runs; a method of `Faults` makes it.

    The end of the block raises FaultNotFiredError if it did not act, unless the block raised.

    Attributes
    ----------
    fired : int
        Count of the calls that failed, or were delayed, so far.
    """

    def __init__(
        self,
        kind: str,
        root: str,
        where: TopicPartition | str | None,
        *,
        number: int = 1,
        error: int = 0,
        delay_ns: int = 0,
        hint: str = "",
    ) -> None:
        self.kind = kind
        self._hint = hint  # Why it may not act.
        self._root = os.path.realpath(root)
        self._where = where
        self._number, self._error, self._delay_ns = number, error, delay_ns
        self._armed: int | None = None
        self._counts = (0, 0, "")
        self.is_entered = False
        self.is_reported = False  # That it did not act.

    @property
    def fired(self) -> int:
        """Count of the calls that failed, or were delayed, so far."""
        return self._looked()[1]

    def __enter__(self) -> Self:
        with _lock:
            if self.is_entered:
                raise RuntimeError(f"{self!r} was used before: make another one for each block")
            take_calls_over()
            try:
                self._armed = _native().arm(
                    self.kind,
                    self._root,
                    *_place_of(self._where),
                    number=self._number,
                    error=self._error,
                    delay_ns=self._delay_ns,
                )
            except BaseException:
                give_calls_back()
                raise
            self.is_entered = True
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        with _lock:
            armed = self._armed
            if armed is None:
                return
            _native().disarm(armed)
            self._counts = self._looked()
            self._armed = None
            give_calls_back()
        if error is None and not self.fired:
            self.is_reported = True
            raise FaultNotFiredError(self.explain())

    def __repr__(self) -> str:
        where = "the store" if self._where is None else str(self._where)
        return f"<eoslog.testing.Fault {self.kind!r} of {where}, fired {self.fired}>"

    def _looked(self) -> tuple[int, int, str]:
        armed = self._armed
        if armed is None:
            return self._counts
        native = _native()
        return native.seen(armed), native.hits(armed), native.last(armed)

    def explain(self) -> str:
        """Return why it did not act."""
        if not self.is_entered:
            return f"{self!r} was not used: it acts in its block, `with ...:`"
        seen, _, last = self._looked()
        if self.kind == "full":
            return (
                "the disk was full, and nothing needed room: the store had room in reserve; write "
                "more, or have a smaller segment.bytes"
            )
        where = "the store" if self._where is None else str(self._where)
        others = f"; the last sync elsewhere was of {last}" if last else ""
        return (
            f"{where} had {seen} syncs in the block, and number {self._number} was to "
            f"{'fail' if self.kind == 'sync' else 'take long'}{others}{self._hint}"
        )


def _place_of(where: TopicPartition | str | None) -> tuple[str, bool]:
    if where is None:
        return "", False
    if isinstance(where, str):
        return where, True
    return f"{where.topic}-{where.partition}", False


def _native() -> ModuleType:
    from eoslog.bindings import call_faults  # Of tests alone: nothing else loads it.

    return call_faults


def take_calls_over() -> None:
    """Take over the calls of eoslog, LMDB and Python, if they are not. See `give_calls_back`.

    Raises FaultUnavailableError.
    """
    global _users, _process_id
    with _lock:
        if _process_id != os.getpid():
            _users, _process_id = 0, os.getpid()
        if not _users:
            native = _native()
            try:
                syncs = sum(native.take_module(path) for path in _module_files())
                native.take_interpreter()
            except (OSError, LookupError) as error:
                native.give_back()
                raise FaultUnavailableError(f"calls cannot be taken over here: {error}") from error
            if not syncs:
                native.give_back()
                raise FaultUnavailableError("no module of eoslog calls the kernel by the linker")
        _users += 1


def give_calls_back() -> None:
    """Put the calls back as they were, with the last user."""
    global _users
    with _lock:
        _users -= 1
        if not _users:
            _native().give_back()


def _module_files() -> Iterator[str]:
    """The files of the extension modules, all loaded: one that is loaded later would be left."""
    import lmdb.cpython

    yield str(lmdb.cpython.__file__)
    for layer in ("native", "bindings"):
        package = import_module(f"eoslog.{layer}")
        for found in pkgutil.iter_modules(package.__path__):
            name = f"{package.__name__}.{found.name}"
            with suppress(ImportError):  # Of one that needs a package which is not there.
                import_module(name)
            module = sys.modules.get(name)
            path = None if module is None else module.__file__
            if path is not None and path.endswith(".so") and found.name != "call_faults":
                yield path
