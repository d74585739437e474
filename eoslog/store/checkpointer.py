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
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
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
from eoslog.producer.producer import Producer, notice_replacements
from eoslog.session.background_thread import BackgroundThread
from eoslog.staging.staged_commit import StagedCommits
from eoslog.storage.offset_checkpoints import LastOffsets, last_offsets
from eoslog.storage.opened_partitions import ROWS_BEHIND_MAX
from eoslog.storage.partition import Partition
from eoslog.storage.spare_files import make_spare_room, trim_spares
from eoslog.store.internal_compaction import InternalCompaction
from eoslog.store.peer_monitor import PeerMonitor
from eoslog.store.retention import OldestRecords, apply_retention
from eoslog.store.store_files import StoreFiles
from eoslog.transactions.transaction_timeouts import NextTimeout, abort_timed_out, expire_ids

# What is due so soon is done at once, and not by waking up for it alone.
TOGETHER_S = 0.05
# What could not be ended is tried again after so many looks for transactions that timed out.
RETRY_INTERVALS = 10
# How often a partition that is being appended to is looked at.
LOOK_S = 1.0
# For so long staged files are removed at once; the rest after the next look.
REMOVAL_S = 1.0
ERRORS_KEPT = 20
# One partition, or one kind of work, may meet these; the others have their turn all the same.
REFUSALS = (EoslogError, MemoryError)
# Of transactional ids, above the recovery points that the checkpoints name: then they are renewed.
STATE_RECORDS_BEHIND_MAX = 300_000

_log = logging.getLogger(__name__)


class _Watched:
    """State that the checkpointer keeps of a partition that was appended to."""

    def __init__(self, partition: Partition, active_base_offset: int) -> None:
        """`active_base_offset` is that of the last look: a segment may have been begun since."""
        self.partition = partition
        self.changed_s = time.monotonic()
        self.persisted_bytes = partition.size_bytes
        self.active_base_offset = active_base_offset


class Checkpointer:
    """One thread for one store, which runs while the store is open."""

    def __init__(
        self,
        files: StoreFiles,
        staged: StagedCommits,
        expiry_clock: ExpiryClock,
        live_producers: Callable[[], list[Producer]],
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
        self._noted: set[Partition] = set()  # Appended to since the last look.
        self._leftovers = False  # Complete staged jobs left something since the last look.
        self._watched: dict[Partition, _Watched] = {}  # With rows to be persisted; the thread's.
        # Active segments as they were last seen, where one was begun; the thread's.
        self._active: WeakKeyDictionary[Partition, int] = WeakKeyDictionary()
        self._unwritten: set[Partition] = set()  # Not in the checkpoint files; the thread's.
        self._state_log_persisted = False  # In this round.
        self._compaction = InternalCompaction(files, self._seconds("eoslog.checkpoint.interval.ms"))
        self._peers = PeerMonitor(files, staged, live_producers, self._note, self._keep)
        self._oldest_records = OldestRecords()
        self._next_timeout = NextTimeout(files.transactions, files.state_log)
        now_s = time.monotonic()
        self._peers_due_s = now_s + self._peers.interval_s
        self._timeouts_due_s = now_s + self._transactions_interval_s()
        delay_s = self._config["log.initial.task.delay.ms"] / 1000
        self._checkpoint_due_s = now_s + self._seconds("log.flush.offset.checkpoint.interval.ms")
        self._retention_due_s = now_s + delay_s
        self._expiration_due_s = now_s + delay_s
        self._offsets_due_s = now_s + delay_s
        self._transactions_due_s = now_s + RETRY_INTERVALS * self._transactions_interval_s()
        self._ids_due_s = now_s + delay_s
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
        staged.leftovers.watch(self._note_leftovers)

    # From other threads.

    def watch(self, partition: Partition) -> None:
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

    def _note(self, partition: Partition) -> None:
        with self._lock:
            self._noted.add(partition)
            self._files.session.note_change()
            if not self._watched:
                self._condition.notify()

    def _note_leftovers(self) -> None:
        """Staged jobs are complete, and left something to be removed."""
        with self._lock:
            self._leftovers = True
            if not self._watched:
                self._condition.notify()

    def forget_expired_producers(self, partition: Partition) -> None:
        """Forget expired producers of a partition whose rows were loaded, as Kafka does.

        What fails is done by the next regular look.
        """
        oldest_ms = self._expiry_clock.now_ms() - self._config["producer.id.expiration.ms"]
        try:
            partition.producer_state.forget_expired_at_load(oldest_ms, self.unexpiring_producer_ids)
        except REFUSALS as error:
            _log.warning("%s: expired producers are kept: %s", partition.topic_partition, error)

    def unexpiring_producer_ids(self) -> frozenset[int]:
        """Producer ids of names, of open producers and of jobs that are not complete."""
        live = frozenset(producer.producer_id for producer in self._live_producers())
        of_transactions = self._files.transactions.live_producer_ids()
        of_names = self._files.names.producer_ids()
        return of_names | live | self._staged.producer_ids() | of_transactions

    def stop(self) -> None:
        """Stop the thread, and wait for what it is doing. A second call does nothing."""
        with self._lock:
            self._stopped = True
            self._condition.notify_all()
        self._thread.join()
        if self._noted:
            self._files.session.note_change()

    def metrics(self) -> dict[str, Any]:
        """Return how often it did what, and the last different errors, newest last."""
        with self._lock:
            return {**self._counts, "errors": list(self._errors)}

    # The thread.

    def _run(self) -> None:
        try:
            while self._wait():
                try:
                    now_s = time.monotonic()
                    if self._files.journal is not None:
                        self._files.journal.start_if_wanted()
                    if now_s + TOGETHER_S >= self._peers_due_s:
                        if self._peers.is_due(now_s):
                            self._look_after_peers()
                        else:
                            self._peers_due_s = now_s + self._peers.interval_s
                    if now_s + TOGETHER_S >= self._timeouts_due_s:
                        self._timeouts_due_s = now_s + self._transactions_interval_s()
                        self._attempt(self._abort_timed_out, "looking at open transactions")
                    if self._is_due(now_s):
                        self._round(now_s)
                except Exception as error:  # Whatever it is: the thread goes on, it is shown.
                    self._keep(error, "a round")
        finally:
            self._peers.end()

    def _wait(self) -> bool:
        """Sleep until something is due; False once stopped."""
        with self._lock:
            woken = False
            while not self._stopped:
                now_s = time.monotonic()
                due_s = min(self._due_s(), self._peers_due_s, self._timeouts_due_s)
                if due_s <= now_s or (woken and self._noted):
                    return True
                if self._noted or self._watched or self._leftovers:
                    woken = True
                    due_s = min(due_s, now_s + self._look_s())
                    self._condition.wait(max(0.0, due_s - now_s))
                    return not self._stopped
                self._condition.wait(due_s - now_s)
            return False

    def _due_s(self) -> float:
        """Return when the next work is due that depends on time alone."""
        due_s = min(
            self._retention_due_s,
            self._expiration_due_s,
            self._offsets_due_s,
            self._transactions_due_s,
            self._ids_due_s,
            self._compaction.due_s,
        )
        return min(due_s, self._checkpoint_due_s) if self._unwritten else due_s

    def _is_due(self, now_s: float) -> bool:
        with self._lock:
            waiting = bool(self._noted or self._watched) or self._leftovers
            return waiting or self._due_s() <= now_s

    def _look_after_peers(self) -> None:
        """Once the store's files were replaced, this raises, and nothing else is done any more."""
        try:
            self._peers.look()
        finally:
            self._peers_due_s = time.monotonic() + self._peers.interval_s
        if count_deleted():
            for partition in self._files.partitions.opened():
                with suppress(LogClosedError):
                    partition.free_deleted()

    def _look_s(self) -> float:
        return min(LOOK_S, self._seconds("eoslog.checkpoint.interval.ms"))

    def _round(self, now_s: float) -> None:
        self._state_log_persisted = False
        with self._lock:
            noted, self._noted = self._noted, set()
            leftovers, self._leftovers = self._leftovers, False
            self._counts["rounds"] += 1
        if noted:
            self._files.engine.check_files()
        if leftovers:
            # First, so that rows are not made of producers that are forgotten at once.
            self._attempt(self._clear_leftovers, "removing staged files")
        for partition in noted:
            partition.watch_changes(self._note)
            self._each(partition, self._begin_to_watch)
        if noted:
            # Of what they were appended to before, the others learn now; of the next append, then.
            self._files.session.note_change()
        for watched in list(self._watched.values()):
            self._each(watched.partition, lambda one: self._look_at(self._watched[one], now_s))
        if now_s >= self._compaction.due_s:
            self._attempt(self._compact, "compacting internal topics")
        if now_s >= self._checkpoint_due_s and self._unwritten:
            self._checkpoint_due_s = now_s + self._seconds(
                "log.flush.offset.checkpoint.interval.ms"
            )
            self._write_checkpoints()
        if now_s >= self._expiration_due_s:
            self._expiration_due_s = now_s + self._seconds(
                "producer.id.expiration.check.interval.ms"
            )
            self._expire_producers()
        if now_s >= self._transactions_due_s:
            self._transactions_due_s = now_s + RETRY_INTERVALS * self._transactions_interval_s()
            self._attempt(self._retry_transactions, "completing transactions")
        if now_s >= self._ids_due_s:
            self._ids_due_s = now_s + self._seconds(
                "transaction.remove.expired.transaction.cleanup.interval.ms"
            )
            if self._peers.leads():
                self._attempt(self._expire_ids, "expiring transactional ids")
        if now_s >= self._offsets_due_s:
            self._offsets_due_s = now_s + self._seconds("offsets.retention.check.interval.ms")
            if self._peers.leads():
                self._attempt(self._expire_offsets, "expiring groups' offsets")
        if now_s >= self._retention_due_s:
            self._retention_due_s = now_s + self._seconds("log.retention.check.interval.ms")
            if self._peers.leads():
                self._retain()
                self._attempt(self._sweep_staged, "sweeping staged files")

    def _clear_leftovers(self) -> None:
        """Remove some of what complete jobs left. A close does not wait for it, nor other work."""
        until_s = time.monotonic() + REMOVAL_S
        self._staged.clear_leftovers(lambda: self._stopped or time.monotonic() > until_s)
        if self._staged.leftovers.any_trash:
            self._note_leftovers()

    def _sweep_staged(self) -> None:
        self._staged.sweep(lambda: self._stopped)

    def _begin_to_watch(self, partition: Partition) -> None:
        self._unwritten.add(partition)
        if partition not in self._watched:
            active = self._active.get(partition, partition.active_when_opened)
            self._watched[partition] = _Watched(partition, active)
            self._prepare_spare(partition)

    def _look_at(self, watched: _Watched, now_s: float) -> None:
        partition = watched.partition
        # Those of the internal topics are small, and mostly go before they are synced.
        rolled = (
            partition.topic not in INTERNAL_TOPICS
            and partition.active_base_offset != watched.active_base_offset
        )
        if rolled:
            watched.active_base_offset = partition.active_base_offset
            self._active[partition] = watched.active_base_offset
            self._prepare_spare(partition)
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
            self._persist(partition)
        self._compaction.look(partition)

    def _compact(self) -> None:
        self._files.engine.check_files()
        self._count("segments_deleted", self._compaction.run())

    def compact_at_close(self) -> None:
        """Compact what is due, once the thread was stopped: it may not have come to it."""
        for partition in self._noted | self._watched.keys():
            self._each(partition, self._compaction.look)
        if self._compaction.due_s < math.inf:
            self._attempt(self._compact, "compacting internal topics")

    def _persist(self, partition: Partition) -> None:
        if partition.topic == TRANSACTION_STATE_TOPIC:
            if self._state_log_persisted:
                return  # With that of another partition.
            self._files.state_log.persist()
            self._state_log_persisted = True
            if self._files.transaction_recovery.records_behind > STATE_RECORDS_BEHIND_MAX:
                # Opening after a crash reads them all.
                self._unwritten.add(partition)
                self._checkpoint_due_s = time.monotonic()
            return
        if partition.topic == CONSUMER_OFFSETS_TOPIC:
            self._files.group_offsets.log.persist(partition.partition)
        partition.producer_state.persist(behind_max=ROWS_BEHIND_MAX)
        partition.store_indexes()
        self._count("rows_persisted", 1)

    def _prepare_spare(self, partition: Partition) -> None:
        """Have a file ready for the next roll; only where segments are known to fill up, and did
        since the partition was opened: a process that is open for a moment needs none.
        """
        if (
            partition.topic not in INTERNAL_TOPICS
            and self._config["eoslog.spare.segments"]
            and partition.has_rolled
            and partition.fills_segments
            and make_spare_room(
                self._files.paths,
                partition.topic_partition,
                self._files.engine.segment_bytes(partition.topic),
            )
        ):
            self._count("spare_files_prepared", partition.prepare_spare())

    def _write_checkpoints(self) -> None:
        """Sync what was appended, and write down from where a recovery has to read."""
        self._unwritten = set()
        for partition in self._files.partitions.opened():
            self._each(partition, _flush_if_behind)
        # Without it the checkpoints keep to the points of before.
        self._attempt(self._files.transaction_recovery.advance, "syncing markers")
        self._attempt(self._write_offsets, "writing checkpoints")

    def _write_offsets(self) -> None:
        sync = self._files.engine.syncs
        self._files.checkpoints.renew(self._known_offsets, sync=sync)
        self._count("checkpoints_written", 1)

    def _known_offsets(self) -> Mapping[TopicPartition, LastOffsets]:
        known = {}
        recovery = self._files.transaction_recovery
        for partition in self._files.partitions.opened():
            try:
                where = partition.topic_partition
                known[where] = recovery.checkpoint(where, last_offsets(partition))
            except LogClosedError:
                continue  # Deleted meanwhile.
        return known

    def _abort_timed_out(self) -> None:
        """Abort the transactions that were open for too long, of any process."""
        if not self._next_timeout.has_come():
            return
        coordinator = self._files.transactions
        timed_out = abort_timed_out(coordinator, clock.now_ms())
        self._count("transactions_timed_out", timed_out)
        if timed_out:
            notice_replacements(self._live_producers())

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

        def expire(partition: Partition) -> None:
            expired = partition.producer_state.expire(oldest_ms, self.unexpiring_producer_ids)
            self._count("producers_expired", expired)

        with self._staged.quiet() as is_quiet:
            # Else another process adopts files of a job just now: their ids must stay.
            if is_quiet:
                for partition in self._files.partitions.opened():
                    self._each(partition, expire)

    def _expire_offsets(self) -> None:
        expired = self._files.group_offsets.expire(self._expiry_clock.now_ms())
        self._count("group_offsets_expired", expired)

    def _retain(self) -> None:
        """Apply every topic's retention, also to partitions that no process has open."""
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
                    continue  # Deleted meanwhile.
                except REFUSALS as error:
                    self._keep(error, str(where))
                    continue
                self._count("segments_deleted", deleted)
        self._oldest_records.forget_all_but(limited)
        if self._counts["segments_deleted"] != deleted_before:
            self._attempt(self._write_offsets, "writing checkpoints")
            self._attempt(lambda: trim_spares(self._files.paths), "removing spare files")

    def _retain_one(self, where: TopicPartition, topic_id: str, config: dict[str, int]) -> int:
        directory = self._files.paths.partition(where)
        now_ms = self._expiry_clock.now_ms()
        with named_os_errors(f"looking at {where}"):
            try:
                if not self._oldest_records.may_be_released(
                    where, topic_id, directory, config, now_ms
                ):
                    return 0
            except FileNotFoundError:
                return 0  # The topic was deleted meanwhile.
        partition = self._files.partitions.find(where)
        if partition is None or partition.failed:
            return 0
        return apply_retention(partition, self._files.names, config, now_ms)

    # Errors and counts.

    def _each(self, partition: Partition, work: Callable[[Partition], object]) -> None:
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

    def _attempt(self, work: Callable[[], None], what: str) -> None:
        try:
            work()
        except REFUSALS as error:
            self._keep(error, what)

    def _keep(self, error: Exception, what: str) -> None:
        text = f"{what}: {type(error).__name__}: {error}"
        with self._lock:
            self._counts["error_count"] += 1
            if text not in self._errors:
                self._errors.append(text)
        self._warnings.warning("%s", text)

    def _transactions_interval_s(self) -> float:
        return self._seconds("transaction.abort.timed.out.transaction.cleanup.interval.ms")

    def _count(self, name: str, count: int) -> None:
        with self._lock:
            self._counts[name] += count

    def _seconds(self, setting: str) -> float:
        return self._config[setting] / 1000


def _flush_if_behind(partition: Partition) -> None:
    if partition.flushed_up_to < partition.log_end_offset:
        partition.flush()
