"""What a store has on disk, taken up where the last process left it, and laid down in order.

Invariants: nothing is written before the store is locked and the trace of its last clean close is
removed; that trace is left again only by a close that synced everything. Opening costs the same
whatever the store holds: partitions are opened, and after an unclean stop recovered, when they are
first used. The steps have numbers in `docs/durability-and-recovery.md`.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from eoslog.append_signal import AppendSignal
from eoslog.clean_close import (
    forget_last_stop,
    new_session,
    read_last_stop,
    write_clean_close,
)
from eoslog.config import parse_store_config
from eoslog.durability import Durability
from eoslog.errors import EoslogError
from eoslog.group_offsets import GroupOffsets
from eoslog.group_offsets_index import GroupOffsetsIndex
from eoslog.internal_compaction import InternalCompaction
from eoslog.named_producers import NamedProducers
from eoslog.offset_checkpoints import OffsetCheckpoints
from eoslog.opened_partitions import OpenedPartitions
from eoslog.producer_ids import ProducerIds
from eoslog.producer_state_store import ProducerStateStore
from eoslog.state_log import StateLog
from eoslog.store_directory import enter_store
from eoslog.store_paths import StorePaths
from eoslog.store_topics import StoreTopics
from eoslog.topic_registry import TopicRegistry
from eoslog.transaction_admin import TransactionAdmin
from eoslog.transaction_coordinator import TransactionCoordinator
from eoslog.transaction_recovery import TransactionRecovery


class StoreFiles:
    """The parts of one store that have files. Made, they have changed nothing yet: see `begin`."""

    def __init__(
        self,
        path: Path,
        create: bool,
        durability: Durability,
        config: Mapping[str, object] | None,
        on_fork: Callable[[], None],
    ) -> None:
        self.config, topic_defaults = parse_store_config(config)
        self.paths = StorePaths(path.absolute())
        self.durability: Durability = durability
        self.signal = AppendSignal()
        with ExitStack() as undo:
            self._lock, self.identity = enter_store(self.paths, create, on_fork)
            undo.callback(self._lock.release)
            self.rows = ProducerStateStore(self.paths.state)
            undo.callback(self.rows.close)
            self.registry = TopicRegistry.load(self.paths.root, self.paths.state)
            undo.pop_all()
        self.was_stopped_uncleanly = False
        self.checkpoints = OffsetCheckpoints(self.paths.root)
        self.partitions = OpenedPartitions(
            self.paths,
            self.registry,
            self.checkpoints,
            self.rows,
            self.config,
            topic_defaults,
            durability,
            self.signal,
        )
        self.state_log = StateLog(self.partitions, self.rows, durability != "process")
        self.producer_ids = ProducerIds(self.state_log)
        self.transactions = TransactionCoordinator(
            self.state_log,
            self.producer_ids,
            self.partitions,
            self.signal,
            durable=durability != "process",
            timeout_max_ms=self.config["transaction.max.timeout.ms"],
        )
        self.transaction_admin = TransactionAdmin(self.transactions, self.state_log)
        self.transaction_recovery = TransactionRecovery(
            self.transactions, self.state_log, self.partitions, self.checkpoints
        )
        self.names = NamedProducers(self.state_log, self.producer_ids, self.partitions.find)
        self.group_offsets = GroupOffsets(
            self.partitions, GroupOffsetsIndex(self.rows), self.config, durability != "process"
        )
        self.compaction = InternalCompaction(
            self.state_log,
            self.transactions.entries,
            self.transaction_recovery.safe_offset,
            self.group_offsets,
            self.config["eoslog.producers.cached.max"],
        )
        self.topics = StoreTopics(self.registry, self.partitions, self.names, self.group_offsets)

    def begin(self) -> None:
        """Take the store up where the last process left it (O3 to O6), and its transactions."""
        marker, unrecovered = self.paths.clean_marker, self.paths.unrecovered
        last_stop = read_last_stop(marker, unrecovered)
        # Before anything is written: from here on a crash is an unclean stop.
        forget_last_stop(marker, unrecovered)
        self.was_stopped_uncleanly = last_stop.unrecovered is None
        if last_stop.unrecovered is None:
            self.partitions.recover_all()
        else:
            self.partitions.recover_some(last_stop.unrecovered)
        to_recover = self.partitions.unrecovered
        mark = self.rows.read_session()
        self.state_log.load(bool(last_stop.session) and mark == last_stop.session.encode())
        self.transaction_recovery.recover(to_recover, self.was_stopped_uncleanly)

    def close(self) -> list[EoslogError]:
        """Bring everything to disk and give the store up (C3 to C9); what went wrong."""
        try:
            errors = self.partitions.close_cleanly(internal=False)
            errors += errors_of([self.state_log.persist, self.group_offsets.persist_all])
            errors += self.partitions.close_cleanly(internal=True)
            errors += errors_of([self._write_checkpoints])
            if not errors:
                errors += errors_of([self._leave_clean])
        finally:
            self.rows.close()
            self._lock.release()
        return errors

    def abandon(self) -> None:
        """Give the store up as it is: the next opening recovers it."""
        self.partitions.abandon()
        self.rows.close()
        self._lock.release()

    def _write_checkpoints(self) -> None:
        offsets = self.partitions.closed_offsets
        all_synced = {one.topic_partition for one in self.partitions.opened()} <= set(offsets)
        self.checkpoints.write(self.transaction_recovery.closed(offsets, all_synced))

    def _leave_clean(self) -> None:
        session = new_session()
        self.rows.write_session(session.encode())
        left = self.partitions.unrecovered | self.transaction_recovery.unresolved
        write_clean_close(self.paths.clean_marker, self.paths.unrecovered, session, left)


def errors_of(steps: Iterable[Callable[[], None]]) -> list[EoslogError]:
    """Take every step, whatever becomes of the others; what went wrong."""
    errors = []
    for step in steps:
        try:
            step()
        except EoslogError as error:
            errors.append(error)
    return errors
