"""One open store for each process and directory, lent to callers for a moment.

A process has a store open once, so what counts is the directory, by its device and inode: links,
relative paths and mounts of the same directory lead to one object.

Spark runs parts of a query in processes of its own, keeps them for the next micro-batch, leaves
them idle and kills them without a word. So a store stays open from one use to the next, and is
closed by a thread soon after the last one: a process that is killed later held nothing.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eoslog.errors import EoslogError
from eoslog.spark.memory_limit import explained

if TYPE_CHECKING:
    from eoslog import Store

# From the last use of a store until it is closed. Opening one again takes some 20 ms on a disk.
IDLE_S = 3.0

# A directory, by device and inode.
Identity = tuple[int, int]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lent:
    """A store that is open; `users` are the blocks that have it now."""

    store: "Store"
    users: int = 0
    idle_since_s: float = 0.0
    # An error left doubts about it: it is closed after its last user.
    spoiled: bool = False

    def was_replaced(self) -> bool:
        """True if another store was put at its path since: this process cannot close it."""
        from eoslog.store.store import engine_of

        try:
            engine_of(self.store).check_files()
        except EoslogError:
            return True
        return False


class OpenStores:
    """The stores that this process has open on behalf of Spark."""

    def __init__(self) -> None:
        # Taken as it is: an interrupt between the condition's own steps would leave it held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.lent: dict[Identity, _Lent] = {}
        self._closer: threading.Thread | None = None

    def borrow(self, path: Path, durability: str | None) -> tuple[Identity, _Lent]:
        import eoslog

        with self._lock:
            # A link may lead elsewhere while the store is open.
            path = Path(os.path.realpath(path))
            known = None
            with suppress(OSError):  # No store: opening it says so.
                where = _identity(path)
                known = self.lent.get(where)
            if known is not None:
                fits = durability in (None, known.store.durability)
                # A spoiled one that is in use stays: its calls say what is wrong.
                usable = known.users > 0 or not (known.spoiled or known.was_replaced())
                if fits and usable and not known.store.closed:
                    known.users += 1
                    return where, known
                if known.users == 0 or known.store.closed:
                    self._close(where)
            self._close_replaced()
            # If it is in use with another durability, opening it says so.
            made = _Lent(eoslog.open(path, durability=durability), users=1)
            where = _identity(path)
            self.lent[where] = made
            return where, made

    def give_back(self, where: Identity, lent: _Lent, spoiled: bool) -> None:
        with self._lock:
            lent.users -= 1
            lent.idle_since_s = time.monotonic()
            lent.spoiled |= spoiled
            if lent.users == 0 and lent.spoiled and self.lent.get(where) is lent:
                self._close(where)
            elif self._closer is None:
                closer = threading.Thread(
                    target=self._close_idle, name="eoslog-spark-stores", daemon=True
                )
                # Without one the store stays open, until the next one is given back.
                with suppress(RuntimeError, MemoryError):
                    closer.start()
                    self._closer = closer
            self._changed.notify_all()

    def close_unused(self) -> None:
        with self._lock:
            for where, lent in list(self.lent.items()):
                if lent.users == 0:
                    self._close(where)
            self._changed.notify_all()

    def _close_replaced(self) -> None:
        """Close what another store has taken the path of: it is of no use to anyone."""
        for where, lent in list(self.lent.items()):
            if lent.users == 0 and not lent.store.closed and lent.was_replaced():
                self._close(where)

    def _close(self, where: Identity) -> None:
        """Close a store without users. Whatever it could not do, its next opening does."""
        lent = self.lent.pop(where)
        try:
            lent.store.close()
        except Exception as error:
            _log.warning("closing %s: %s", lent.store.path, error)

    def _close_idle(self) -> None:
        """The thread: close what has not been used for a while; end when nothing is open."""
        with self._lock:
            while self.lent:
                now_s = time.monotonic()
                due_s = now_s + IDLE_S
                for where, lent in list(self.lent.items()):
                    if lent.users:
                        continue
                    if lent.idle_since_s + IDLE_S <= now_s:
                        self._close(where)
                    else:
                        due_s = min(due_s, lent.idle_since_s + IDLE_S)
                if self.lent:
                    self._changed.wait(max(0.0, due_s - now_s))
            self._closer = None


def _identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_dev, found.st_ino


_stores = OpenStores()


def close_unused_stores() -> None:
    """Close now what is not lent, for code of this process that opens a store itself."""
    _stores.close_unused()


def _begin_anew() -> None:
    """Begin again in a forked child: the stores are the parent's, and so is the thread."""
    global _stores
    _stores = OpenStores()


os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def lent_store(path: str | os.PathLike[str], durability: str | None = None) -> "Iterator[Store]":
    """The store at a path, open for the length of the block; do not close it.

    Whatever path leads to it, it is one object.

    `durability` is that of `eoslog.open`: None takes the store as other processes have it open. A
    store is closed after an error that leaves doubts about it, and opened again by the next block.
    Raises what `eoslog.open` raises, and MemoryLimitError where a limit of Spark is the reason.
    """
    stores = _stores
    absolute = Path(path).absolute()
    with explained(absolute):
        where, lent = stores.borrow(absolute, durability)
        try:
            yield lent.store
        except BaseException as error:
            stores.give_back(where, lent, spoiled=_leaves_doubts(error))
            raise
    stores.give_back(where, lent, spoiled=False)


def _leaves_doubts(error: BaseException) -> bool:
    """True if the store may be at fault: not if the caller stopped early, or gave bad arguments."""
    if isinstance(error, (GeneratorExit, ValueError, TypeError)):
        return False
    return not isinstance(error, EoslogError) or error.outcome != "not_appended"
