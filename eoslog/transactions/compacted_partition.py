"""One partition of `__transaction_state`: its records, and how a process follows them.

Invariant: everything below `known_end` is known: it is in the index, it was read, or its writer in
this process has noted it or will be asked. Of each key only the newest record is kept, and none
that stood in a segment which another process deleted before this one had read it: a tombstone may
have gone with it. What held of that is in the index, and in the log once more.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar

from eoslog.bindings.log_reader import Columns, KeyedRecords
from eoslog.bindings.record_batch import Record
from eoslog.common.json_text import loads_json
from eoslog.errors import CorruptRecordError, OffsetOutOfRangeError, StoreVersionError
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.state_key import (
    APPLICATION,
    PRODUCER_ID_BLOCK,
    TRANSACTION,
    TYPE_BYTES,
    is_known_key,
    is_transaction_key,
    transactional_id_of,
    type_of,
    type_prefix,
)

RECORD_VERSION = 1

_RECORDS_PER_READ = 1000
_READ_BYTES = 4 << 20
_FOLLOWED_BYTES = 128 << 10  # Between two of these other threads have their turn.
_TRANSACTIONS = type_prefix(TRANSACTION)
# Of a transaction's record, the state is this byte in all versions of the value.
_STATE_BYTE = 16
# In JSON a text has no bare quotes, so that this is a field of it.
PREPARED_APPLICATION = b'"state":"prepared"'
_DECIDED_STATES = (2, 3)  # PrepareCommit, PrepareAbort.
_COMPLETE_STATES = (4, 5)  # CompleteCommit, CompleteAbort.
_UNDECIDED_STATES = frozenset((1, *_DECIDED_STATES))  # And Ongoing.

_Read = TypeVar("_Read")

State = Mapping[str, Any]
OnTransaction = Callable[[str, int], None]
OnGap = Callable[[int, int], None]


class StateRecord(NamedTuple):
    """The newest record of a key, as it stands in the log; None: a tombstone."""

    value: bytes | None
    offset: int


class CompactedPartition:
    """A partition and its newest records. The state log's lock guards it."""

    def __init__(self, partition: UnifiedLog) -> None:
        self.partition = partition
        self.newer: dict[bytes, StateRecord] = {}  # Than the index.
        self.read_at: dict[bytes, int] = {}  # Of watched keys.
        self._doubtful_from: int | None = None  # From here on it is read again, own records too.

    @property
    def known_end(self) -> int:
        """Offset below which no record has to be read."""
        return self.partition.log.own_end

    @property
    def is_behind(self) -> bool:
        """True if another process has appended records that were not read."""
        # In this order: own appends move both, and must not look like those of others.
        end = self.partition.log_end_offset
        return end > self.partition.log.own_end or self._doubtful_from is not None

    def append(self, key: bytes, value: bytes, sync: bool) -> int:
        """Append a record of one of our own types, synced if `sync`, and return its offset.

        After an error, or an interrupt, the log is read again from before the append.
        """
        before = min(self.partition.log.own_end, self.partition.log_end_offset)
        try:
            offset = self.partition.append_columns([value], [key]).last_offset
            if sync:
                self.partition.make_durable(offset + 1)
        except BaseException:
            self._doubtful_from = self._first_unread(before)
            raise
        self.newer[key] = StateRecord(value, offset)
        return offset

    def note(self, key: bytes, record: StateRecord) -> None:
        """Note a record of a transactional id, if it is newer than the known one."""
        known = self.newer.get(key)
        if known is None or known.offset < record.offset:
            self.newer[key] = record

    def drop_below(self, offset: int) -> None:
        """Drop the records below an offset: the index has them, or newer ones."""
        self.newer = {key: one for key, one in self.newer.items() if one.offset >= offset}

    # Reading.

    def read_on(self, on_transaction: OnTransaction, on_gap: OnGap) -> None:
        """Read what others appended, and what this process appended after that.

        `on_gap(number, log_start_offset)` is called where compaction may have deleted some of it.
        """
        end = self.partition.log_end_offset
        first = self._first_unread(self.partition.log.own_end)
        if first < end:
            self._apply(first, end, on_transaction)
            start = self.partition.log_start_offset
            if first < start:
                self.drop_below(start)
                self.read_at = {key: max(offset, start) for key, offset in self.read_at.items()}
                on_gap(self.partition.partition, start)
            # Own appends move it on only where nothing is to be read.
            self.partition.log.own_end = end
        self._doubtful_from = None

    def _first_unread(self, offset: int) -> int:
        return offset if self._doubtful_from is None else min(offset, self._doubtful_from)

    def read_from(self, offset: int) -> None:
        """Read everything from an offset on; all below it is known."""
        end = self.partition.log_end_offset
        if offset < end:
            self._apply(offset, end, None)
        self.partition.log.own_end = end  # It never goes back.
        self._doubtful_from = None

    def _apply(self, offset: int, upper_bound: int, on_transaction: OnTransaction | None) -> None:
        next_producer_id = -1
        partition, newer = self.partition, self.newer

        def read(begin: int) -> tuple[KeyedRecords, int]:
            return partition.log.fetch_newest(_TRANSACTIONS, begin, _FOLLOWED_BYTES, upper_bound)

        for transactions, others in _reads(partition, offset, upper_bound, read):
            for key, (value, at) in transactions.items():
                if key in newer or is_transaction_key(key):
                    newer[key] = StateRecord(value, at)
                    if on_transaction is not None:
                        on_transaction(transactional_id_of(key), at)
            for key, value, at in others:
                if len(key) < TYPE_BYTES or type_of(key) < PRODUCER_ID_BLOCK or value is None:
                    continue
                state = _checked_state(value, partition, at)
                if type_of(key) == PRODUCER_ID_BLOCK:
                    next_producer_id = _next_block(state, next_producer_id, partition, at)
                newer[key] = StateRecord(value, at)
                if key in self.read_at:
                    self.read_at[key] = at


class WatchedKey:
    """A key of one of our own types, whose records by other processes are noted."""

    def __init__(
        self, partition: CompactedPartition, key: bytes, catch_up: Callable[[int], None]
    ) -> None:
        self._partition = partition
        self._key = key
        self._catch_up = catch_up
        partition.read_at.setdefault(key, -1)

    def newest_read(self) -> int:
        """The newest offset at which a record of the key was read; -1 if none was.

        Those are other processes' records, and some of this one that stand after others'.
        """
        if self._partition.is_behind:
            self._catch_up(self._partition.partition.partition)
        return self._partition.read_at.get(self._key, -1)

    def unwatch(self) -> None:
        """Stop watching."""
        self._partition.read_at.pop(self._key, None)


def records_from(partition: UnifiedLog, offset: int, upper_bound: int) -> Iterator[Record]:
    """The records of a state partition, in [offset, upper_bound); from its log start offset on if
    another process compacts it at the same time.
    """

    def read(begin: int) -> tuple[list[Record], int]:
        return partition.fetch_records(begin, _RECORDS_PER_READ, _READ_BYTES)

    return chain.from_iterable(_reads(partition, offset, upper_bound, read))


def _reads(
    partition: UnifiedLog, offset: int, upper_bound: int, read: Callable[[int], tuple[_Read, int]]
) -> Iterator[_Read]:
    """Yield what `read` finds from an offset on; it also returns where to go on."""
    offset = max(offset, partition.log_start_offset)
    while offset < upper_bound:
        try:
            found, offset = read(offset)
        except OffsetOutOfRangeError:
            if offset >= partition.log_start_offset:
                raise
            # Another process compacted it: what holds of that was written again at higher offsets.
            offset = partition.log_start_offset
            continue
        yield found


def _columns_from(
    partition: UnifiedLog, offset: int, upper_bound: int | None = None
) -> Iterator[Columns]:
    """The records of a state partition as columns, up to its end without a bound; the last columns
    may go beyond a bound.
    """
    offset = max(offset, partition.log_start_offset)
    while offset < (partition.log_end_offset if upper_bound is None else upper_bound):
        columns = partition.fetch_columns(offset, _READ_BYTES)
        if columns is None:
            return
        offset = columns.next_offset
        yield columns


def decisions_from(
    partition: UnifiedLog, offset: int, *, complete: bool = False
) -> Iterator[StateRecord]:
    """The records from an offset on of decided and incomplete transactions, or of `complete` ones
    too; oldest first.
    """
    first, last = _DECIDED_STATES[0], (_COMPLETE_STATES if complete else _DECIDED_STATES)[-1]
    for columns in _columns_from(partition, offset):
        data, starts, ends = columns.value_data, columns.value_offsets, columns.value_offsets[1:]
        (long_enough,) = (ends - starts[:-1] > _STATE_BYTE).nonzero()
        states = data[starts[long_enough] + _STATE_BYTE]
        for index in long_enough[(states >= first) & (states <= last)].tolist():
            if is_transaction_key(_key_at(columns, index)):
                value = data[starts[index] : ends[index]].tobytes()
                yield StateRecord(value, int(columns.offsets[index]))


def is_unresolved(key: bytes, value: bytes | None) -> bool:
    """True if a record is of a transaction that is open, or decided and incomplete, or of an
    application with a job that is decided and incomplete.
    """
    if value is None:
        return False
    if type_of(key) == APPLICATION:
        return PREPARED_APPLICATION in value
    if type_of(key) != TRANSACTION or len(value) <= _STATE_BYTE:
        return False
    return value[_STATE_BYTE] in _UNDECIDED_STATES


def keys_below(partition: UnifiedLog, upper_bound: int) -> set[bytes]:
    """Read the keys that have records below an offset: those of transactional ids, and of our own
    types.
    """
    found: set[bytes] = set()
    for columns in _columns_from(partition, 0, upper_bound):
        count = int(columns.offsets.searchsorted(upper_bound))
        data, ends = columns.key_data.tobytes(), columns.key_offsets[: count + 1].tolist()
        found.update(data[start:end] for start, end in pairwise(ends))
    return set(filter(is_known_key, found))


def _key_at(columns: Columns, index: int) -> bytes:
    start, end = columns.key_offsets[index : index + 2]
    key: bytes = columns.key_data[start:end].tobytes()
    return key


def _checked_state(value: bytes, partition: UnifiedLog, offset: int) -> State:
    try:
        state = loads_json(value)
        version = state["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(
            str(partition.path), offset, f"the state record at offset {offset} is not JSON"
        ) from error
    if not isinstance(version, int) or version > RECORD_VERSION:
        raise StoreVersionError(
            f"{partition.topic_partition}: the state record at offset {offset} has version "
            f"{version}; known are versions up to {RECORD_VERSION}"
        )
    checked: State = state
    return checked


def _next_block(state: State, known: int, partition: UnifiedLog, offset: int) -> int:
    """Check the end of a block of producer ids: a block given out twice would make new records look
    like duplicates.

    The same one may stand twice: compaction writes a record again before it deletes the older one.
    """
    found = state.get("next_producer_id")
    if not isinstance(found, int) or found < max(known, 0):
        raise CorruptRecordError(
            str(partition.path),
            offset,
            f"the block of producer ids at offset {offset} ends at {found!r}, the one before it "
            f"at {known}",
        )
    return found
