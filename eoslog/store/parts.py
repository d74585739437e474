"""Parts of a store, put together as it opens, and let go of as it closes.

`StoreFiles` has what is on disk. Order of locks: the store's own, a name's, a producer's, the
internal log's, a partition's.
"""

import copy
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from eoslog.bindings.lock_block import LockBlock
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.clock import ExpiryClock
from eoslog.common.durability import Durability, Remembered
from eoslog.errors import (
    ConcurrentAccessError,
    EoslogError,
    ForkedProcessError,
    LogClosedError,
    ProducerFencedError,
    StoreFailedError,
    StoreReadOnlyError,
)
from eoslog.producer.linger import LingerTimer
from eoslog.producer.parts import ProducerParts
from eoslog.staging.on_demand import StagedJobs
from eoslog.store.checkpointer import REMOVAL_S, Checkpointer
from eoslog.store.consistent_snapshot import ConsistentSnapshots
from eoslog.store.files import (
    AS_USUAL,
    TO_RECOVER,
    OpeningMode,
    StoreFiles,
    errors_of,
    raise_first,
)

if TYPE_CHECKING:
    from eoslog.producer.producer import Producer
    from eoslog.staging.commit import StagedCommits

T = TypeVar("T")

_log = logging.getLogger("eoslog.store.store")  # The name that `Store.close` gives.


class StoreParts:
    """The parts of one store. Made, they hold nothing yet: see `open`."""

    def __init__(
        self, path: Path, config: Mapping[str, object] | None, mode: OpeningMode = AS_USUAL
    ) -> None:
        self._lock = ThreadLock()
        self._close_lock = ThreadLock()
        self._closed = False
        self._closing = False
        self.is_forked = False  # This is a child of the process that opened it.
        self._failure: StoreFailedError | None = None
        self._producers_lock = ThreadLock()
        self._producers: MutableSet[Producer] = weakref.WeakSet()
        self.files = StoreFiles(path, config, mode)

    def open(
        self,
        create: bool,
        durability: Durability | Remembered | None,
        opened: Callable[["StoreParts"], T],
    ) -> T:
        """Open the store, and return `opened(self)`. An interrupt (Ctrl-C) leaves nothing open: a
        signal may arrive as soon as `opened` has returned.
        """
        began_s = time.monotonic()
        files = self.files
        try:
            files.enter(
                create,
                durability,
                on_fork=self._after_fork,
                is_closed=self.is_closed,
                check_open=self.check_open,
                check_files=self._look_at_files,
                check_writable=self.check_writable,
            )
            self.expiry_clock = ExpiryClock()
            self.linger = LingerTimer()
            self.staged_jobs = StagedJobs(
                files.engine,
                files.state_log,
                files.group_offsets,
                files.transactions.entries.none_is_undecided,
                self.expiry_clock,
            )
            self.snapshots = ConsistentSnapshots(
                files.engine, self.staged_jobs, files.transactions.entries
            )
            self.checkpointer = Checkpointer(
                files, self.staged_jobs, self.expiry_clock, self.producers
            )
            self.of_producers = ProducerParts(
                files.engine,
                files.state_log,
                files.producer_ids,
                files.transactions,
                files.names,
                files.group_offsets,
                self.linger,
            )
            if not files.mode.in_background:
                self.checkpointer.stop()
            files.transaction_recovery.leaves_open = files.mode.leaves_open
            files.begin()
            if files.follows:
                files.opened()
            else:
                self._recover()
            self._log_opening(began_s)
            return opened(self)
        except BaseException:
            # Only an interrupt's traceback has the parts, which must not keep the store open.
            try:
                self._give_up_opening()
            except BaseException:
                self._give_up_opening()  # A second interrupt came before its end.
                raise
            with files.paths.errors_as_shown():
                raise

    def _recover(self) -> None:
        files = self.files
        files.topics.finish_deletions()
        if files.session.first:
            self.staged_jobs.roll_forward()
            if files.was_stopped_uncleanly:
                self.staged_jobs.renew_groups()
            files.opened()
        else:
            self.staged_jobs.recover_dead_peers()
        files.partitions.watch_opened(self.checkpointer.watch)
        files.partitions.watch_loaded(self.checkpointer.forget_expired_producers)
        # Also where no partition is used: every process ends what dead ones left.
        self.checkpointer.start_if_possible()

    def _log_opening(self, began_s: float) -> None:
        if not _log.isEnabledFor(logging.INFO):
            return
        from importlib.metadata import version  # What it loads not every opening needs.

        files = self.files
        unrecovered = len(files.partitions.unrecovered)
        how = "with nothing to recover" if files.session.first else "joined the others"
        if files.session.first and unrecovered:
            how = f"after an unclean stop, {unrecovered} partitions are recovered when first used"
        elif files.session.first and files.had_unrecovered:
            how = "after an unclean stop, all partitions are recovered"
        writes = files.overlay is None
        if not writes:
            how = f"only to be read, {how}"
        _log.info(
            "%s: opened in %.3f s, eoslog %s, durability %s, %d processes: %s",
            *(files.paths.shown, time.monotonic() - began_s, version("eoslog")),
            *(files.shown_durability, len(files.session.slots.others()) + writes, how),
        )

    @property
    def staged(self) -> "StagedCommits":
        """The part that handles staged jobs."""
        return self.staged_jobs.commits

    # While it is open.

    def is_closed(self) -> bool:
        """Return True if it is not open any more in this process."""
        return self._closed or self.is_forked

    def check_open(self) -> None:
        """Raise the error of a store that is not open, or whose files are not its own any more."""
        if self.is_forked:
            path = self.files.paths.shown
            raise ForkedProcessError(f"{path} was opened before a fork: open it again in the child")
        if self._closed:
            raise LogClosedError(f"the store {self.files.paths.shown} is closed")
        if self._failure is not None:
            raise copy.copy(self._failure)  # Without its traceback, which keeps records alive.
        if self.files.overlay is not None:
            self.files.overlay.check()

    def check_writable(self) -> None:
        """Raise StoreReadOnlyError if the store is only read."""
        self.check_open()
        if self.files.mode.reads_only:
            raise StoreReadOnlyError(f"{self.files.paths.shown} was opened with read_only=True")

    def changing_topics(self) -> LockBlock[None]:
        """Return a block in which no other thread creates or deletes a topic."""
        self.check_writable()
        return LockBlock(self._lock, prepare=lambda _: self.check_open())

    def _look_at_files(self) -> None:
        """Look whether the files are still those that were opened; for the background thread.

        Raises StoreFailedError if they are not, as every call then does: what is there now is not
        touched, and those who wait for records are woken.
        """
        try:
            self.files.session.look()
        except StoreFailedError as error:
            if self._failure is None:
                self._failure = error
                self.files.partitions.give_up(error)
                self.files.signal.wake()
            raise

    def producers(self) -> "list[Producer]":
        """The producers that live, and were made here."""
        with self._producers_lock:
            return list(self._producers)

    def add_producer(self, producer: "Producer") -> None:
        """Close a producer with the store. Raises LogClosedError where that is being closed."""
        with self._producers_lock:
            ends = self._closing or self._closed
            if not ends:
                self._producers.add(producer)
        if ends:
            # The close has asked for the producers, or does so without this one.
            with suppress(LogClosedError):
                producer.close()
            raise LogClosedError(f"the store {self.files.paths.shown} is closed")

    def hold_producers(self) -> None:
        """Hold each producer that is made until the store is closed: for tests, which find what was
        forgotten by them.
        """
        with self._producers_lock:
            self._producers = set(self._producers)

    def _after_fork(self) -> None:
        """Note that this is a forked child. Takes no lock: a thread that held it is not here."""
        self.is_forked = True
        self.files.leave_to_parent()
        for producer in list(self._producers):
            from eoslog.producer.producer import ProducerInternals  # Loaded, as there is one.

            ProducerInternals(producer).leave_to_parent()

    # Its end.

    def close(self) -> None:
        """See `Store.close`."""
        if self.is_forked:
            return  # Nor may a lock be waited for that a thread of the parent holds.
        if self.files.mode.reads_only:
            self.abandon()
            return
        with self._close_lock:
            self._closing = True
            try:
                errors = self._close_all()
            finally:
                self._closing = False
        raise_first(errors)

    def _close_all(self) -> list[EoslogError]:
        if self._closed:
            self.files.give_up()  # An interrupt may have left something of it.
            return []
        began_s = time.monotonic()
        errors = self._close_producers()
        for error in errors:
            if isinstance(error, ConcurrentAccessError):
                raise error  # This thread is in a call of that producer: the store stays open.
        self.checkpointer.stop()
        self.checkpointer.compact_at_close()
        self.linger.stop()
        self._clear_leftovers()
        with self._lock:
            self._closed = True
            try:
                errors += self.files.close()
            except BaseException:
                self.files.give_up()
                raise
        # Producers that began to write since then.
        self._close_producers()
        self.files.signal.wake()
        close_s = time.monotonic() - began_s
        _log.info("%s: closed in %.3f s, %d errors", self.files.paths.shown, close_s, len(errors))
        return errors

    def _clear_leftovers(self) -> None:
        try:
            until_s = time.monotonic() + REMOVAL_S
            self.staged_jobs.clear_leftovers(lambda: time.monotonic() > until_s)
        except EoslogError as error:
            _log.warning("what staged jobs left is swept by the next opening: %s", error)

    def _close_producers(self) -> list[EoslogError]:
        errors = errors_of(producer.close for producer in self.producers())
        for error in errors:
            if isinstance(error, ProducerFencedError):
                # Its successor has the name; the next call of this one raises the same error.
                _log.warning("a producer was closed with records it had gathered: %s", error)
        return [error for error in errors if not isinstance(error, ProducerFencedError)]

    def _give_up_opening(self) -> None:
        """Give up an opening that failed; an interrupt may have come at any step."""
        self._closed = True
        try:
            if hasattr(self, "checkpointer"):
                self.checkpointer.stop()
        finally:
            self.files.give_up()

    def abandon(self) -> None:
        """Give the store up as the death of the process would: the next opening recovers it."""
        with self._close_lock:
            self.checkpointer.stop()
            self.linger.stop()
            with self._lock:
                self._closed = True
                self.files.give_up()
            self.files.signal.wake()


@contextmanager
def opened_parts(
    path: Path,
    config: Mapping[str, object] | None = None,
    *,
    create: bool = False,
    mode: OpeningMode = TO_RECOVER,
) -> Iterator[StoreParts]:
    """Open a store that no other process knows, as a rule a copy, and give its parts. It is closed
    at the end, and after an error given up.

    With `AS_LEFT` the transactions that its last processes left open are not aborted, and nothing
    is synced but by the close.
    """
    durability: Durability | None = "process" if mode.leaves_open else None
    parts = StoreParts(path, config, mode).open(create, durability, lambda parts: parts)
    try:
        yield parts
    except BaseException:
        parts.abandon()
        raise
    parts.close()
