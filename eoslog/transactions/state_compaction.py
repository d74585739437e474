"""Compaction of `__transaction_state`: what still holds is written again, then the rest goes.

Only the newest record of a key holds. Once a segment is sealed, the newest records that stand below
the active segment are appended anew, as they are, under the locks of those who write them; then
the sealed segments are deleted, from the oldest on. Nobody tells a copy from its original.

Invariants: a segment is deleted only after the copies of all that holds in it are synced. It stays
while it has the record of an undecided transaction, or a decision whose markers are not known to be
synced: after a power cut those markers are sent again from there.
"""

from collections.abc import Callable, Iterator

import numpy

from eoslog.errors import TransactionalIdNotFoundError
from eoslog.storage.partition import Partition
from eoslog.transactions.state_log import (
    PRODUCER_ID_BLOCK,
    StateLog,
    StateRecord,
    state_partition_of,
    transaction_key,
)
from eoslog.transactions.transaction_entries import UNDECIDED_STATES, TransactionEntries

_READ_BYTES = 4 << 20


def compact_state_partition(
    partition: Partition,
    state_log: StateLog,
    entries: TransactionEntries,
    safe_offset: Callable[[int], int],
) -> int:
    """Compact one partition; how many segments went.

    `safe_offset(number)` answers up to where all decisions of a partition have their markers
    synced. Raises StoreFullError or StoreFailedError: then nothing was deleted.
    """
    upper_bound = partition.active_base_offset
    if upper_bound <= partition.first_base_offset:
        return 0
    keep_from = upper_bound
    for key in _own_keys(partition, upper_bound):
        state_log.write_again(key)
    # The index has each id's newest record, with its offset, once it was brought up to the log.
    state_log.persist()
    for transactional_id, record in state_log.transactions():
        if state_partition_of(transactional_id) == partition.partition and (
            record.offset < upper_bound
        ):
            kept = _write_again(transactional_id, partition, state_log, entries, upper_bound)
            keep_from = min(keep_from, kept)
    partition.sync_up_to(partition.log_end_offset)
    keep_from = min(keep_from, safe_offset(partition.partition))
    return partition.delete_segments(keep_from)


def _write_again(
    transactional_id: str,
    partition: Partition,
    state_log: StateLog,
    entries: TransactionEntries,
    upper_bound: int,
) -> int:
    """Append an id's newest record anew; the offset from which the log is needed for it."""
    try:
        with entries.locked(transactional_id) as entry:
            if entry.record_offset >= upper_bound:
                return upper_bound
            if entry.state in UNDECIDED_STATES:
                return entry.record_offset
            value = entry.value()
            result = partition.append_columns([value], [transaction_key(transactional_id)])
            entry.load(value, result.last_offset)
            record = StateRecord(value, result.last_offset)
            state_log.moved(transactional_id, record)
    except TransactionalIdNotFoundError:
        pass  # It expired meanwhile; its last record has no value.
    return upper_bound


def _own_keys(partition: Partition, upper_bound: int) -> Iterator[bytes]:
    """The keys of eoslog's own types that have records below an offset, each once."""
    seen: set[bytes] = set()
    offset = partition.log_start_offset
    while offset < upper_bound:
        columns = partition.fetch_columns(offset, _READ_BYTES)
        if columns is None:
            return
        offset = columns.next_offset
        starts, ends = columns.key_offsets[:-1], columns.key_offsets[1:]
        typed = numpy.flatnonzero(ends - starts >= 2)
        first = columns.key_data[starts[typed]].astype(numpy.int32)
        types = first << 8 | columns.key_data[starts[typed] + 1]
        # The types of Kafka's tools are far below, as are those with the sign bit set above.
        own = typed[(types >= PRODUCER_ID_BLOCK) & (types < 1 << 15)]
        for index in own.tolist():
            key = columns.key_data[starts[index] : ends[index]].tobytes()
            if columns.offsets[index] < upper_bound and key not in seen:
                seen.add(key)
                yield key
