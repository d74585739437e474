"""The partitions of `__consumer_offsets`, and the state of groups that their replay gives.

Each look at a group first replays what was appended since the last one, also transactions' markers
and records of other processes. What was replayed is kept in LMDB with the offset up to which it is
true, so that opening does not read the whole log again.

Invariants: a change of a group that depends on its state holds the lock of its partition from the
look to the append, in all processes. No lock that a waiting reader takes is held during an append.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from typing import NamedTuple

from eoslog.bindings.client_transaction import OffsetsTarget
from eoslog.bindings.lock_block import LockBlock
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.record_batch import decode_records
from eoslog.bindings.shared_page import (
    COUNTER_TOPICS,
    LOCK_COUNTERS,
    LOCK_GROUP_INDEX,
    SharedPage,
)
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.bindings.transaction_batches import iter_unreplaced_batches
from eoslog.bindings.transaction_entry import TransactionPart
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.errors import CorruptRecordError, EoslogError, OffsetOutOfRangeError
from eoslog.groups.members import GroupMembers
from eoslog.groups.offsets_index import GroupOffsetsIndex
from eoslog.groups.offsets_state import GroupOffsetsState
from eoslog.groups.records import (
    MembersKey,
    OffsetKey,
    OffsetValue,
    encode_key,
    encode_value,
)
from eoslog.storage.damage import UNREADABLE
from eoslog.storage.lmdb_environment import StateStoreDamagedError
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.state_index import write_live_bytes
from eoslog.transactions.state_key import state_partition_of

# In the page that processes share: the lock of partition 0's groups; that of the others follow it.
# They come after all other locks there, and before those of one process.
GROUP_LOCKS_FIRST = LOCK_COUNTERS + 1

_READ_BYTES = 4 << 20
_NOTHING_YET = -1


class GroupRecord(NamedTuple):
    """Record of an offset or of members; without a value it is a tombstone."""

    key: OffsetKey | MembersKey
    value: OffsetValue | GroupMembers | None

    def encoded(self) -> tuple[bytes, bytes | None]:
        """Return its key and value; ValueError if a text does not fit."""
        return encode_key(self.key), None if self.value is None else encode_value(self.value)


class GroupPartition:
    """One partition of `__consumer_offsets` and its state."""

    def __init__(self, partition: UnifiedLog) -> None:
        self.partition = partition
        self.lock = ThreadLock()  # Guards what follows; taken after the one of `writing`.
        self.state = GroupOffsetsState()
        self.applied_offset = _NOTHING_YET  # Of the log; at first nothing is loaded.
        self.keeping = ThreadLock()  # One at a time writes to LMDB; taken before `lock`.
        self.kept_offset = _NOTHING_YET
        self.kept_generation = _NOTHING_YET  # Of the rows in LMDB; if another, all are written.

    @property
    def number(self) -> int:
        """Number of the partition."""
        return self.partition.partition


class GroupLog:
    """Log of all groups of one store, in its partitions; for several threads."""

    def __init__(
        self,
        partitions: OpenedPartitions,
        index: GroupOffsetsIndex,
        sync: bool,
        shared: SharedPage,
    ) -> None:
        self.partitions = partitions
        self.index = index
        self._sync = sync
        self._shared = shared
        self._used: dict[int, GroupPartition] = {}

    # The partition of `__consumer_offsets` with a group's records: Kafka's choice. The same few
    # groups are asked for again and again.
    partition_of = staticmethod(lru_cache(1024)(state_partition_of))

    def of(self, number: int) -> GroupPartition:
        """A partition with its state; created if it does not exist."""
        used = self._used.get(number)
        if used is None:
            partition = self.partitions.offsets_partition(number)
            used = self._used.setdefault(number, GroupPartition(partition))
        return used

    def of_group(self, group: str) -> GroupPartition:
        """The partition with a group's records; created if it does not exist."""
        return self.of(self.partition_of(group))

    def if_there(self, group: str) -> GroupPartition | None:
        """The partition with a group's records; None if it does not exist."""
        number = self.partition_of(group)
        used = self._used.get(number)
        if used is None and number in self.partitions.existing_offsets_partitions():
            used = self.of(number)
        return used

    def used(self) -> list[GroupPartition]:
        """The partitions that this process has used."""
        return list(self._used.values())

    def existing(self) -> Iterator[GroupPartition]:
        """Open and yield all partitions that exist."""
        for number in self.partitions.existing_offsets_partitions():
            yield self.of(number)

    # Looking and writing.

    def writing(self, groups: GroupPartition) -> AbstractContextManager[object]:
        """Return a block in which no other thread, of any process, changes the partition's groups.

        Transactions' markers may still be appended. A thread may enter it more than once.
        """
        return self._shared.held(GROUP_LOCKS_FIRST + groups.number)

    def offsets_target(
        self, number: int, part: TransactionPart, keys: list[bytes], topics_count: int
    ) -> OffsetsTarget:
        """Return where a transaction appends offsets of these keys; `topics_count` is an earlier
        answer of `topics_count`.
        """
        partition = self.of(number).partition
        lock = GROUP_LOCKS_FIRST + number
        return OffsetsTarget(partition, part, keys, self._shared, lock, topics_count)

    def topics_count(self) -> int:
        """Count how often topics were created or deleted, by all processes."""
        return self._shared.counter(COUNTER_TOPICS)

    def caught_up(self, groups: GroupPartition) -> LockBlock[GroupOffsetsState]:
        """Return a block that gives a partition's newest state, and keeps other threads out."""

        def catch_up(_: object) -> GroupOffsetsState:
            self._catch_up(groups)
            return groups.state

        return LockBlock(groups.lock, prepare=catch_up)

    def append(self, groups: GroupPartition, records: Sequence[GroupRecord]) -> AppendResult:
        """Write records outside of transactions, unsynced; the caller is in a `writing` block."""
        columns = [record.encoded() for record in records]
        result = groups.partition.append_columns(
            [value for _, value in columns], [key for key, _ in columns]
        )
        with groups.lock:
            if (
                groups.applied_offset == result.base_offset
                and result.last_offset - result.base_offset + 1 == len(records)
            ):
                # The result of a replay is known without reading.
                for offset, record in enumerate(records, result.base_offset):
                    groups.state.apply(record.key, record.value, offset)
                groups.applied_offset = result.last_offset + 1
        return result

    def sync(self, groups: GroupPartition, result: AppendResult) -> None:
        """Sync an append, if the store's durability asks for it."""
        if self._sync:
            groups.partition.make_durable(result.last_offset + 1)

    # Compaction.

    def write_forward(
        self, partition: UnifiedLog, standing_still: Callable[[], AbstractContextManager[object]]
    ) -> int:
        """Write again what still holds in the sealed segments of a partition. Returns the offset up
        to which segments may be deleted: the copies are synced. Those stay that have records of
        open transactions, or an offset that an open transaction is to replace.

        `standing_still` gives a block in which no transaction moves. Raises StoreFullError or
        StoreFailedError.
        """
        groups = self.of(partition.partition)
        bytes_before = partition.size_bytes
        with standing_still(), self.writing(groups):
            bases = [base for base, _ in partition.segment_sizes()]
            bound = self._settled_below(groups, partition.active_base_offset)
            upper_bound = max((base for base in bases if base <= bound), default=0)
            if upper_bound <= bases[0] or not self.write_again(groups.number, upper_bound):
                return 0  # Tried again after the next append.
        live_bytes = partition.size_bytes - bytes_before
        partition.flush()
        # The batches of transactions' producers go with the segments.
        partition.producer_state.save_copies()
        write_live_bytes(self.index.environment, partition.topic_partition, live_bytes)
        return upper_bound

    def _settled_below(self, groups: GroupPartition, upper_bound: int) -> int:
        """Return the offset, at most the given one, below which no record is of an open
        transaction, nor an offset that one is to replace.
        """
        with self.caught_up(groups) as state:
            if groups.applied_offset < groups.partition.log_end_offset:
                return 0  # A staged job is being adopted.
            stable_end = groups.partition.last_stable_offset
            return min(upper_bound, stable_end, *state.offsets_to_replace())

    def write_again(self, number: int, upper_bound: int) -> bool:
        """Append, unsynced, a copy of what holds of groups and stands below an offset.

        Returns False, and writes nothing, where a transaction that is open in the partition is to
        replace some of it: a copy counts as written later than the pending offset, and must not win
        over it. The caller keeps transactions still.
        """
        groups = self.of(number)
        with self.writing(groups):
            if self._settled_below(groups, upper_bound) < upper_bound:
                return False
            with self.caught_up(groups) as state:
                old = [
                    GroupRecord(OffsetKey(group, where), written.value)
                    for group in state.groups()
                    for where, written in state.committed(group).items()
                    if written.record_offset < upper_bound
                ]
                for group in state.groups():
                    members = state.members(group)
                    if members is not None and members.record_offset < upper_bound:
                        old.append(GroupRecord(MembersKey(group), members.value))
            if old:
                self.append(groups, old)
        return True

    # Keeping beside the log what was replayed.

    def persist(self, number: int) -> None:
        """Write the state of a partition to LMDB, if it was used. Raises StoreFullError."""
        groups = self._used.get(number)
        if groups is None:
            return
        with groups.keeping, self._shared.held(LOCK_GROUP_INDEX):
            if not self._persist(groups):
                # Rows were lost in another process: write all that is known here.
                groups.kept_generation = _NOTHING_YET
                self._persist(groups)

    def _persist(self, groups: GroupPartition) -> bool:
        with groups.lock:
            with suppress(*UNREADABLE):
                # A look at a group raises it; what comes before it is worth keeping.
                self._catch_up(groups)
            generation, offset = self.index.generation, groups.applied_offset
            if groups.state.replayed_offset > offset:
                return True  # The state is of no offset: it lacks transactions.
            whole = generation != groups.kept_generation
            state = groups.state
            rows = state.begin_keeping()
            if whole:
                rows = frozenset(state.all_rows())
            changes = [(row, state.row(row)) for row in rows]
        since = None if whole else groups.kept_offset
        if not whole and not changes and offset == groups.kept_offset:
            return True
        if not self.index.write(groups.number, offset, changes, generation, since):
            return False
        with groups.lock:
            if groups.state is state:  # Else it was loaded again since.
                groups.kept_offset, groups.kept_generation = offset, generation
            state.kept()
        return True

    def persist_all(self) -> None:
        """Write the state of all partitions that were used to LMDB; raises the first error."""
        errors = []
        for number in list(self._used):
            try:
                self.persist(number)
            except EoslogError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    # Replay.

    def _catch_up(self, groups: GroupPartition) -> None:
        partition = groups.partition
        while True:
            start = partition.log_start_offset
            if _NOTHING_YET < groups.applied_offset < start:
                # Compaction deleted records that were not replayed; what holds is in the others.
                # The offset last: after an interrupt all this is done again.
                groups.kept_generation = _NOTHING_YET
                groups.state = GroupOffsetsState()
                groups.applied_offset = start
            if groups.applied_offset == _NOTHING_YET:
                self._load(groups)
            if groups.applied_offset >= partition.visible_end:
                return
            try:
                self._replay_some(groups)
            except OffsetOutOfRangeError:
                if groups.applied_offset >= partition.log_start_offset:
                    raise

    def _load(self, groups: GroupPartition) -> None:
        """Load the rows of LMDB, if there are any; may be repeated after an interrupt."""
        number, state = groups.number, GroupOffsetsState()
        groups.kept_generation = self.index.generation
        try:
            kept = self.index.read(number)
        except (StateStoreDamagedError, CorruptRecordError):
            self.index.delete(number)
            groups.kept_generation = self.index.generation
            kept = None
        offset = groups.partition.log_start_offset
        if kept is not None and kept.offset >= offset:
            for row, written in kept.rows:
                state.install(row, written)
            groups.kept_offset = offset = kept.offset
        else:
            # No rows, or older ones than the log's beginning: what holds is in the log.
            groups.kept_generation = _NOTHING_YET
        groups.state = state
        groups.applied_offset = offset

    def _replay_some(self, groups: GroupPartition) -> None:
        partition = groups.partition
        data = memoryview(partition.read(groups.applied_offset, _READ_BYTES))
        if not data:
            # Kafka compacted these records away before eoslog had the log.
            _, groups.applied_offset = partition.fetch_records(groups.applied_offset, 1, 1)
        for header in iter_unreplaced_batches(data):
            if header.last_offset < max(groups.applied_offset, groups.state.replayed_offset):
                continue
            batch = data[header.position_bytes : header.position_bytes + header.batch_bytes]
            try:
                records = decode_records(batch, CONSUMER_OFFSETS_TOPIC, partition.partition)
                groups.state.replay(header, records)
            except CorruptRecordError as error:
                raise CorruptRecordError(
                    str(partition.path),
                    error.position_bytes,
                    f"the batch at offset {header.base_offset} is not of a group: {error.reason}",
                ) from error
            # After an interrupt or an error the next call goes on from here: again, a marker would
            # end what its producer began after it.
            groups.state.replayed_offset = header.last_offset + 1
        # Once all are in: one that is left out counts only with the one that replaces it.
        groups.applied_offset = max(groups.applied_offset, groups.state.replayed_offset)
