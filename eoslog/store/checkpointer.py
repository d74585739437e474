"""Background thread of a store: it keeps opening and recovery short, and the disk from filling up.

For partitions that were appended to, it writes producers' rows to LMDB, prepares spare segment
files, syncs, and writes the checkpoint files. For the whole store it applies retention, removes
expired producers and staged files that no job needs, and ends transactions that timed out or whose
process died. While nothing is appended it wakes once a second, to look for other processes and for
timeouts. Each process has such a thread for its own appends; one of them does the work of the whole
store. It blocks an append for no longer than one look at the producer table. An error is logged,
kept for `Store.metrics()`, and the work is tried again.
"""

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from eoslog.bindings.partition_log import count_deleted
from eoslog.common import clock
from eoslog.common.clock import ExpiryClock
from eoslog.common.config import NO_LIMIT
from eoslog.common.repeated_warnings import RepeatedWarnings
from eoslog.common.topic_name import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
)
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError, LogClosedError, OutOfMemoryError
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.background_thread import BackgroundThread
from eoslog.staging.on_demand import StagedJobs
from eoslog.storage.offset_checkpoints import LastOffsets, last_offsets
from eoslog.storage.opened_partitions import ROWS_BEHIND_MAX
from eoslog.storage.spare_files import make_spare_room, trim_spares
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.files import StoreFiles
from eoslog.store.internal_compaction import InternalCompaction
from eoslog.store.peer_monitor import PeerMonitor
from eoslog.store.retention import OldestRecords, apply_retention
from eoslog.transactions.timeouts import NextTimeout, abort_timed_out, expire_ids

if TYPE_CHECKING:
    from eoslog.producer.producer import Producer

# What is due so soon is done at once, and not by waking up for it alone.
TOGETHER_S = 0.05
# What could not be ended is tried again after so many looks for transactions that timed out.
RETRY_INTERVALS = 10
# How often a partition that is being appended to is looked at.
LOOK_S = 1.0
# For so long staged files are removed at once; the rest after the next look.
REMOVAL_S = 1.0
ERRORS_KEPT = 20
# One partition may meet these; the others have their turn all the same.
REFUSALS = (EoslogError, MemoryError)
_DONE_LOOK_S = 0.001
# Of transactional ids, above the recovery points that the checkpoints name: then they are renewed.
STATE_RECORDS_BEHIND_MAX = 300_000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Work:
    """Work that is done again and again; if it fails, the other works have their turn."""

    name: str
    interval_s: float  # Between its end and its next begin.
    do: Callable[[], object]
    due_s: float  # By the monotonic clock.
    by_lead: bool = False  # One process does it for the whole store.
    is_wanted: Callable[[], object] = lambda: True


class _Watched:
    """State that the checkpointer keeps of a partition that was appended to."""

    def __init__(self, partition: UnifiedLog, active_base_offset: int) -> None:
        """`active_base_offset` is that of the last look: a segment may have been begun since."""
        self.partition = partition
        self.changed_s = time.monotonic()
        self.persisted_bytes = partition.size_bytes
        self.active_base_offset = active_base_offset


class UnexpiringIds:
    """Producer ids that partitions must not forget: single ones, and blocks, which are in order."""

    def __init__(self, ids: frozenset[int], blocks: list[range]) -> None:
        self._ids = ids
        self._blocks = blocks

    def __contains__(self, producer_id: object) -> bool:
        if not isinstance(producer_id, int):
            return False
        if producer_id in self._ids:
            return True
        at = bisect_right(self._blocks, producer_id, key=lambda block: block.start)
        return at > 0 and producer_id in self._blocks[at - 1]


class Checkpointer:
    """One thread for one store, which runs while the store is open."""

    def __init__(
        self,
        files: StoreFiles,
        staged: StagedJobs,
        expiry_clock: ExpiryClock,
        live_producers: "Callable[[], list[Producer]]",
    ) -> None:
        self._files = files
        self._staged = staged
        self._expiry_clock = expiry_clock
        self._live_producers = live_producers
        self._config = files.config
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._thread = BackgroundThread("eoslog-checkpointer", self._run)
        self._stopped = False
        self._noted: set[UnifiedLog] = set()  # Appended to since the last look.
        self._leftovers = False  # Complete staged jobs left something since the last look.
        self._watched: dict[UnifiedLog, _Watched] = {}  # With rows to be persisted; the thread's.
        # Active segments as they were last seen, where one was begun; the thread's.
        self._active: WeakKeyDictionary[UnifiedLog, int] = WeakKeyDictionary()
        self._unwritten: set[UnifiedLog] = set()  # Not in the checkpoint files; the thread's.
        self._state_log_persisted = False  # In this round.
        self._compaction = InternalCompaction(files)
        self.peers = PeerMonitor(files, staged, live_producers, self._note, self._keep)
        self._oldest_records = OldestRecords()
        self._next_timeout = NextTimeout(files.transactions, files.state_log)
        checkpoint_s = self._seconds("eoslog.checkpoint.interval.ms")
        look_s = min(LOOK_S, checkpoint_s)
        self._looking = _Work("looking at logs", look_s, self._look, 0, is_wanted=self._has_noted)
        self._compacting = _Work(
            *("compacting internal topics", checkpoint_s, self._compact, 0),
            is_wanted=self._compaction.has_due,
        )
        flush_s = self._seconds("log.flush.offset.checkpoint.interval.ms")
        self._checkpointing = _Work(
            *("writing checkpoints", flush_s, self.write_checkpoints, time.monotonic() + flush_s),
            is_wanted=lambda: self._unwritten,
        )
        self.works = self._plan()
        self._counts = {
            "rounds": 0,
            "rows_persisted": 0,
            "checkpoints_written": 0,
            "spare_files_prepared": 0,
            "segments_deleted": 0,
            "producers_expired": 0,
            "group_offsets_expired": 0,
            "transactions_timed_out": 0,
            "transactional_ids_expired": 0,
            "error_count": 0,
        }
        self._errors: deque[str] = deque(maxlen=ERRORS_KEPT)
        self._warnings = RepeatedWarnings(_log)
        staged.watch_leftovers(self._note_leftovers)

    # From other threads.

    def watch(self, partition: UnifiedLog) -> None:
        """Look after a partition that was opened."""
        if not self.start():
            return
        partition.watch_changes(self._note)
        if partition.producer_state.persisted_offset != partition.log_end_offset:
            self._note(partition)

    def start(self) -> bool:
        """Have the thread run, if it was not stopped; whether it runs."""
        with self._lock:
            if self._stopped:
                return False
            self._thread.start()
            return True

    def start_if_possible(self) -> None:
        """Start the thread; if the process has no more threads, opening a partition tries again."""
        try:
            self.start()
        except OutOfMemoryError as error:
            _log.warning("the store's background thread did not start: %s", error)

    def _note(self, partition: UnifiedLog) -> None:
        with self._lock:
            self._expect_look()
            self._noted.add(partition)
            self._files.session.note_change()

    def _note_leftovers(self) -> None:
        """Staged jobs are complete, and left something to be removed."""
        with self._lock:
            self._expect_look()
            self._leftovers = True

    def _expect_look(self) -> None:
        """Something is noted now. A look at once would find more to note right after it."""
        if not self._has_noted():
            self._looking.due_s = time.monotonic() + self._looking.interval_s
            self._condition.notify()

    def _has_noted(self) -> bool:
        return bool(self._noted or self._watched) or self._leftovers

    def forget_expired_producers(self, partition: UnifiedLog) -> None:
        """Forget expired producers of a partition whose rows were loaded, as Kafka does.

        What fails is done by the next regular look.
        """
        oldest_ms = self._expiry_clock.now_ms() - self._config["producer.id.expiration.ms"]
        try:
            partition.producer_state.forget_expired_at_load(oldest_ms, self.unexpiring_producer_ids)
        except REFUSALS as error:
            _log.warning("%s: expired producers are kept: %s", partition.topic_partition, error)

    def unexpiring_producer_ids(self) -> UnexpiringIds:
        """Producer ids of names, of open producers, of jobs that are not complete, and all that
        another process that lives gives out: it knows which of its producers are open.
        """
        live = frozenset(producer.producer_id for producer in self._live_producers())
        of_transactions = self._files.transactions.live_producer_ids()
        of_names = self._files.names.producer_ids()
        of_others = self._files.session.slots.producer_ids_of_others()
        return UnexpiringIds(
            of_names | live | self._staged.producer_ids() | of_transactions, of_others
        )

    def stop(self) -> None:
        """Stop the thread, and wait for what it is doing. A second call does nothing."""
        with self._lock:
            self._stopped = True
            self._condition.notify_all()
        self._thread.join()
        if self._noted:
            self._files.session.note_change()

    def do_all_now(self) -> None:
        """Have the thread do each of its works now, and wait for that; for a test that moved the
        clock.
        """
        self._next_timeout.forget()
        for _ in range(2):  # A work that is being done may have read the clock before.
            works = [work for work in self.works if work.is_wanted()]
            with self._lock:
                for work in works:
                    work.due_s = 0.0
                self._condition.notify_all()
            while any(one.due_s == 0.0 and one.is_wanted() for one in works) and not self._stopped:
                time.sleep(_DONE_LOOK_S)

    def metrics(self) -> dict[str, Any]:
        """Return how often it did what, and the last different errors, newest last."""
        with self._lock:
            return {**self._counts, "errors": list(self._errors)}

    # The thread.

    def _plan(self) -> list[_Work]:
        """Return all works, in the order of their turns."""
        now_s, delay_s = time.monotonic(), self._seconds("log.initial.task.delay.ms")
        abort_s = self._seconds("transaction.abort.timed.out.transaction.cleanup.interval.ms")
        retry_s = RETRY_INTERVALS * abort_s
        peers_s = self.peers.interval_s

        def delayed(name: str, setting: str, do: Callable[[], object], *, by_lead: bool) -> _Work:
            return _Work(name, self._seconds(setting), do, now_s + delay_s, by_lead)

        lead = partial(delayed, by_lead=True)
        retention = "log.retention.check.interval.ms"
        return [
            _Work("looking at other processes", peers_s, self._look_after_peers, now_s + peers_s),
            _Work("looking at open transactions", abort_s, self._abort_timed_out, now_s + abort_s),
            self._looking,
            self._compacting,
            self._checkpointing,
            delayed(
                "expiring producers",
                "producer.id.expiration.check.interval.ms",
                self._expire_producers,
                by_lead=False,
            ),
            _Work("completing transactions", retry_s, self._retry_transactions, now_s + retry_s),
            lead(
                "expiring transactional ids",
                "transaction.remove.expired.transaction.cleanup.interval.ms",
                self._expire_ids,
            ),
            lead(
                "expiring groups' offsets",
                "offsets.retention.check.interval.ms",
                self._expire_offsets,
            ),
            lead("applying retention", retention, self.retain),
            _Work(
                "removing files that a backup kept",
                LOOK_S,
                self._files.file_hold.remove_left_over,
                now_s + LOOK_S,
                is_wanted=lambda: self._files.file_hold.left_over,
            ),
            lead("sweeping staged files", retention, self._sweep_staged),
        ]

    def _run(self) -> None:
        try:
            while self._wait():
                self.do_round()
        finally:
            self.peers.end()

    def _wait(self) -> bool:
        """Sleep until something is due; False once stopped."""
        with self._lock:
            while not self._stopped:
                due_s = min(work.due_s for work in self.works if work.is_wanted())
                left_s = due_s - time.monotonic()
                if left_s <= 0:
                    return True
                self._condition.wait(left_s)
            return False

    def do_round(self) -> None:
        """Do what is due."""
        for work in self.works:
            if work.is_wanted() and work.due_s <= time.monotonic() + TOGETHER_S:
                self.do(work)

    def do(self, work: _Work) -> None:
        """Do one of the works, whenever it is due; an error is kept."""
        self.attempt(partial(self._do, work), work.name)
        work.due_s = time.monotonic() + work.interval_s

    def _do(self, work: _Work) -> None:
        failure = self._files.engine.failure
        if failure is not None:
            raise failure  # The store's files were replaced: those that are there are not its own.
        if not work.by_lead or self.peers.leads():
            work.do()

    def _look_after_peers(self) -> None:
        if self.peers.is_due():
            self.peers.look()
        if count_deleted():
            for partition in self._files.partitions.opened():
                with suppress(LogClosedError):
                    partition.log.free_deleted()

    def _look(self) -> None:
        """Look at what was noted, and at what is watched since."""
        now_s = time.monotonic()
        self._state_log_persisted = False
        with self._lock:
            noted, self._noted = self._noted, set()
            leftovers, self._leftovers = self._leftovers, False
            self._counts["rounds"] += 1
        if noted:
            self._files.engine.check_files()
        if leftovers:
            # First, so that rows are not made of producers that are forgotten at once.
            self.attempt(self._clear_leftovers, "removing staged files")
        for partition in noted:
            partition.watch_changes(self._note)
            self.each(partition, self._begin_to_watch)
        if noted:
            # Of what they were appended to before, the others learn now; of the next append, then.
            self._files.session.note_change()
        for watched in list(self._watched.values()):
            self.each(watched.partition, lambda one: self._look_at(self._watched[one], now_s))

    def _clear_leftovers(self) -> None:
        """Remove some of what complete jobs left. A close does not wait for it, nor other work."""
        until_s = time.monotonic() + REMOVAL_S
        if self._staged.clear_leftovers(lambda: self._stopped or time.monotonic() > until_s):
            self._note_leftovers()

    def _sweep_staged(self) -> None:
        self._staged.sweep(lambda: self._stopped)

    def _begin_to_watch(self, partition: UnifiedLog) -> None:
        self._unwritten.add(partition)
        if partition not in self._watched:
            active = self._active.get(partition, partition.active_when_opened)
            self._watched[partition] = _Watched(partition, active)
            self.prepare_spare(partition)

    def _look_at(self, watched: _Watched, now_s: float) -> None:
        partition = watched.partition
        # Those of the internal topics are small, and mostly go before they are synced.
        rolled = (
            partition.topic not in INTERNAL_TOPICS
            and partition.active_base_offset != watched.active_base_offset
        )
        if rolled:
            watched.active_base_offset = partition.active_base_offset
            _log.debug(
                "%s: rolled: the active segment begins at offset %d",
                *(partition.topic_partition, watched.active_base_offset),
            )
            self._active[partition] = watched.active_base_offset
            self.prepare_spare(partition)
            if self._files.engine.syncs:
                partition.flush()
        aged_s = now_s - watched.changed_s
        grown_bytes = partition.size_bytes - watched.persisted_bytes
        if (
            rolled
            or aged_s >= self._seconds("eoslog.checkpoint.interval.ms")
            or grown_bytes >= self._config["eoslog.checkpoint.bytes"]
        ):
            del self._watched[partition]
            self.persist(partition)
        if self._compaction.look(partition):
            self._compacting.due_s = 0.0

    def _compact(self) -> None:
        self._files.engine.check_files()
        self._count("segments_deleted", self._compaction.run())

    def compact_at_close(self) -> None:
        """Compact what is due, once the thread was stopped: it may not have come to it."""
        for partition in self._noted | self._watched.keys():
            self.each(partition, self._compaction.look)
        if self._compaction.has_due():
            self.attempt(self._compact, "compacting internal topics")

    def persist(self, partition: UnifiedLog) -> None:
        """Write a partition's rows of producers, or of an internal topic."""
        if partition.topic == TRANSACTION_STATE_TOPIC:
            if self._state_log_persisted:
                return  # With that of another partition.
            self._files.state_log.persist()
            self._state_log_persisted = True
            if self._files.transaction_recovery.records_behind > STATE_RECORDS_BEHIND_MAX:
                # Opening after a crash reads them all.
                self._unwritten.add(partition)
                self._checkpointing.due_s = 0.0
            return
        if partition.topic == CONSUMER_OFFSETS_TOPIC:
            self._files.group_offsets.log.persist(partition.partition)
        partition.producer_state.persist(behind_max=ROWS_BEHIND_MAX)
        partition.log.store_indexes()
        self._count("rows_persisted", 1)

    def prepare_spare(self, partition: UnifiedLog) -> None:
        """Have a file ready for the next roll; only where segments are known to fill up, and did
        since the partition was opened: a process that is open for a moment needs none.
        """
        if (
            partition.topic not in INTERNAL_TOPICS
            and self._config["eoslog.spare.segments"]
            and partition.active_base_offset != partition.active_when_opened
            and partition.log.fills_segments
            and make_spare_room(
                self._files.paths,
                partition.topic_partition,
                self._files.engine.segment_bytes(partition.topic),
            )
        ):
            self._count("spare_files_prepared", partition.prepare_spare())

    def write_checkpoints(self) -> None:
        """Sync what was appended, and write down from where a recovery has to read."""
        for partition in self._files.partitions.opened():
            self.each(partition, _flush_if_behind)
        # Without it the checkpoints keep to the points of before.
        self.attempt(self._files.transaction_recovery.advance, "syncing markers")
        self.write_offsets()
        self._unwritten = set()  # Last: what failed is tried again.

    def write_offsets(self) -> None:
        """Write the checkpoint files, of what is synced already."""
        sync = self._files.engine.syncs
        # Listed first: who opens a partition may wait for the lock under which these are looked at.
        opened = self._files.partitions.opened()
        self._files.checkpoints.renew(partial(self._known_offsets, opened), sync=sync)
        self._count("checkpoints_written", 1)

    def _known_offsets(self, opened: Iterable[UnifiedLog]) -> Mapping[TopicPartition, LastOffsets]:
        known = {}
        recovery = self._files.transaction_recovery
        for partition in opened:
            try:
                where = partition.topic_partition
                known[where] = recovery.checkpoint(where, last_offsets(partition))
            except LogClosedError:
                continue  # Deleted since.
        return known

    def _abort_timed_out(self) -> None:
        """Abort the transactions that were open for too long, of any process."""
        if not self._next_timeout.has_come():
            return
        timed_out = abort_timed_out(self._files.transactions, clock.now_ms())
        self._count("transactions_timed_out", timed_out)

    def _retry_transactions(self) -> None:
        """Complete and abort what could not be before."""
        self._next_timeout.forget()
        self._files.transaction_recovery.retry()

    def _expire_ids(self) -> None:
        files = self._files
        expiration_ms = self._config["transactional.id.expiration.ms"]
        now_ms = self._expiry_clock.now_ms()
        expired = expire_ids(files.transactions, files.state_log, now_ms, expiration_ms)
        self._count("transactional_ids_expired", expired)

    def _expire_producers(self) -> None:
        expiration_ms = self._config["producer.id.expiration.ms"]
        oldest_ms = self._expiry_clock.now_ms() - expiration_ms

        def expire(partition: UnifiedLog) -> None:
            expired = partition.producer_state.expire(oldest_ms, self.unexpiring_producer_ids)
            self._count("producers_expired", expired)

        with self._staged.commits.quiet() as is_quiet:
            # Else another process adopts files of a job just now: their ids must stay.
            if is_quiet:
                for partition in self._files.partitions.opened():
                    self.each(partition, expire)

    def _expire_offsets(self) -> None:
        expired = self._files.group_offsets.expire(self._expiry_clock.now_ms())
        self._count("group_offsets_expired", expired)

    def retain(self) -> None:
        """Apply every topic's retention, also to partitions that no process has open. Not while a
        backup copies them.
        """
        with self._files.file_hold.removing() as may_remove:
            if not may_remove:
                self._warnings.info("%s: retention waits for a backup", self._files.paths.root)
                return
        deleted_before = self._counts["segments_deleted"]
        limited: list[TopicPartition] = []
        for topic in self._files.engine.topics().values():
            config = self._files.partitions.config_of(topic)
            if config["retention.ms"] == config["retention.bytes"] == NO_LIMIT:
                continue
            limited += topic.topic_partitions()
            for where in topic.topic_partitions():
                if self._stopped:
                    return
                try:
                    deleted = self._retain_one(where, topic.topic_id, config)
                except LogClosedError:
                    continue  # Deleted since.
                except REFUSALS as error:
                    self._keep(error, str(where))
                    continue
                self._count("segments_deleted", deleted)
        self._oldest_records.forget_all_but(limited)
        if self._counts["segments_deleted"] != deleted_before:
            self.attempt(self.write_offsets, "writing checkpoints")
            self.attempt(lambda: trim_spares(self._files.paths), "removing spare files")

    def _retain_one(self, where: TopicPartition, topic_id: str, config: dict[str, int]) -> int:
        directory = self._files.paths.partition(where)
        now_ms = self._expiry_clock.now_ms()
        with named_os_errors(f"looking at {where}"):
            try:
                if not self._oldest_records.may_be_released(
                    where, topic_id, directory, config, now_ms
                ):
                    _log.debug("%s: retention keeps all: the oldest segment is not due", where)
                    return 0
            except FileNotFoundError:
                return 0  # The topic was deleted.
        partition = self._files.partitions.find(where)
        if partition is None or partition.failed:
            return 0
        start, sizes = partition.log_start_offset, partition.segment_sizes()
        deleted = apply_retention(partition, self._files.names, config, now_ms)
        _log.debug(
            "%s: retention.ms=%d, retention.bytes=%d of %d: %d segments go",
            *(where, config["retention.ms"], config["retention.bytes"]),
            *(sum(size for _, size in sizes), deleted),
        )
        if deleted:
            first = partition.log.first_base_offset
            freed_bytes = sum(size for base_offset, size in sizes if base_offset < first)
            counters = self._files.session.counters
            counters.add("retention_segments", deleted)
            counters.add("retention_bytes", freed_bytes)
            counters.add("retention_records", partition.log_start_offset - start)
            _log.info(
                "%s: retention deleted %d segments with %d bytes: the log begins at offset %d, "
                "and began at %d",
                *(where, deleted, freed_bytes),
                *(partition.log_start_offset, start),
            )
        return deleted

    # Errors and counts.

    def each(self, partition: UnifiedLog, work: Callable[[UnifiedLog], object]) -> None:
        """Do it unless the partition was closed or failed; what goes wrong is kept."""
        try:
            if not partition.failed:
                work(partition)
        except LogClosedError:
            self._watched.pop(partition, None)  # Its topic was deleted, or the store is closing.
            self._unwritten.discard(partition)
        except Exception as error:  # Whatever it is: the other partitions have their turn.
            self._keep(error, str(partition.topic_partition))
            # Again at the next look.
            with self._lock:
                self._noted.add(partition)

    def attempt(self, work: Callable[[], object], what: str) -> None:
        try:
            work()
        except Exception as error:  # Whatever it is: the rest has its turn.
            self._keep(error, what)

    def _keep(self, error: Exception, what: str) -> None:
        text = f"{what}: {type(error).__name__}: {error}"
        with self._lock:
            self._counts["error_count"] += 1
            if text not in self._errors:
                self._errors.append(text)
        self._warnings.warning("%s", text)

    def _count(self, name: str, count: int) -> None:
        with self._lock:
            self._counts[name] += count

    def _seconds(self, setting: str) -> float:
        return self._config[setting] / 1000


def _flush_if_behind(partition: UnifiedLog) -> None:
    if partition.flushed_up_to < partition.log_end_offset:
        partition.flush()
