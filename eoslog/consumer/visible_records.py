"""Count of the records that a consumer has before it: those that it will read, and nothing else.

Offsets are also taken by the markers of transactions, and by records of aborted ones. So the
distance between two offsets is what lies there at most.
"""

from eoslog.bindings.record_batch import BatchHeader
from eoslog.common.durability import IsolationLevel
from eoslog.storage.partition import Partition

# Over a longer way only the distance is returned: what is counted is read.
COUNTED_OFFSETS_MAX = 100_000
_READ_BYTES = 1 << 20


def count_visible(
    partition: Partition, first: int, upper_bound: int, isolation_level: IsolationLevel
) -> int:
    """The records in [first, upper_bound) that a consumer of the isolation level is handed out.

    Where that are more than 100,000 offsets, as many. Raises OffsetOutOfRangeError.
    """
    if upper_bound - first > COUNTED_OFFSETS_MAX:
        return upper_bound - first
    count = 0
    offset = first
    while offset < upper_bound:
        headers = partition.read_headers(offset, _READ_BYTES, isolation_level)
        if not headers:
            break
        for header in headers:
            if header.base_offset >= upper_bound:
                return count
            if not header.is_control:
                count += _count_of(partition, header, offset, upper_bound)
            offset = max(offset, header.last_offset + 1)
    return count


def _count_of(partition: Partition, header: BatchHeader, first: int, upper_bound: int) -> int:
    """The records of a batch in [first, upper_bound); compaction may have taken some out."""
    first = max(first, header.base_offset)
    upper_bound = min(upper_bound, header.last_offset + 1)
    offset_count = header.last_offset - header.base_offset + 1
    if header.record_count == offset_count:
        return max(0, upper_bound - first)
    if upper_bound - first == offset_count:
        return header.record_count
    records, _ = partition.fetch_records(first, offset_count, 1)  # Of one batch.
    return sum(record.offset < upper_bound for record in records)
