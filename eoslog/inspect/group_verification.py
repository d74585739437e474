"""Check that what LMDB holds of groups is what a replay of their log gives."""

from pathlib import Path

from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.errors import CorruptRecordError, OffsetOutOfRangeError
from eoslog.groups.group_offsets_index import GroupOffsetsIndex, KeptOffsets
from eoslog.groups.group_offsets_state import GroupOffsetsState, RowKey
from eoslog.storage.damage import UNREADABLE, Problem, problem, problem_of
from eoslog.storage.partition import Partition
from eoslog.storage.producer_state_store import StateStoreDamagedError

_READ_BYTES = 4 << 20


def verify_groups(partition: Partition, index: GroupOffsetsIndex) -> list[Problem]:
    """Check one partition of `__consumer_offsets`, and what LMDB holds of it."""
    try:
        kept = index.read(partition.partition)
    except StateStoreDamagedError:
        kept = None  # It was begun anew.
    except CorruptRecordError as error:
        return [problem(index.rows.path, f"a row of a group cannot be read: {error}")]
    try:
        return _differences(partition, kept, index.rows.path)
    except UNREADABLE as error:
        return [problem_of(error)]
    except OffsetOutOfRangeError:
        return []  # Another process compacted it meanwhile: what was kept is older than the log.


def _differences(partition: Partition, kept: KeptOffsets | None, path: Path) -> list[Problem]:
    where = partition.topic_partition
    start, end = partition.log_start_offset, partition.log_end_offset
    if kept is not None and kept.offset > end:
        reason = f"{where}: groups are kept up to offset {kept.offset}, the log ends at {end}"
        return [problem(path, reason)]
    state = replayed(partition, start, end if kept is None else kept.offset)
    if kept is None or kept.offset < start:
        return []
    rows = dict(kept.rows)
    compared = state.all_rows()
    if start == 0:
        # Where compaction has cut the beginning off, a row may stand behind the offset, as a copy.
        compared |= rows.keys()
    wrong = [
        f"{where}: {_shown(row)} is kept otherwise than the log has it up to offset {kept.offset}"
        for row in sorted(compared, key=str)
        if state.row(row) != rows.get(row)
    ]
    return [problem(path, reason) for reason in wrong]


def replayed(partition: Partition, offset: int, upper_bound: int) -> GroupOffsetsState:
    """Replay what the log says of its groups, from an offset on.

    Raises CorruptRecordError, and OffsetOutOfRangeError if it begins further up by now.
    """
    state = GroupOffsetsState()
    while offset < upper_bound:
        data = memoryview(partition.read(offset, _READ_BYTES))
        if not data:
            break
        for header in iter_batches(data):
            if header.base_offset >= upper_bound:
                return state
            batch = data[header.position_bytes : header.position_bytes + header.batch_bytes]
            records = decode_records(batch, partition.topic, partition.partition)
            state.replay(header, records)
            offset = header.last_offset + 1
    return state


def _shown(row: RowKey) -> str:
    of_whom = "" if row.producer_id < 0 else f" of producer {row.producer_id}"
    return f"{tuple(row.key)}{of_whom}"
