"""Columns of records on their way to the partitions of a topic: each record where its key says.

Everything is checked before the first partition gets anything, so that a wrong record in the middle
leaves the log as it was.
"""

from collections.abc import Iterator, Mapping

from eoslog.bindings.record_batch import BatchEncoder
from eoslog.columns.placed_rows import RowPlacer, Rows, TopicLimits, check_record_sizes

PlacedColumns = tuple[object, object, object, object]


def placed_columns(
    partition_count: int,
    first_partition: int,
    config: Mapping[str, int],
    values: object,
    keys: object,
    timestamps: object,
    headers: object,
) -> Iterator[tuple[int, PlacedColumns]]:
    """Yield for each partition that gets records its number and their columns, in the order given.

    Records without a key begin at `first_partition`.

    Raises TypeError, ValueError, InvalidTimestampError or RecordTooLargeError.
    """
    rows = Rows.of_columns(values, keys, timestamps, headers)
    if len(rows) == 0:
        raise ValueError("no records to append")
    bytes_max = config["max.message.bytes"]
    rows.check(
        TopicLimits(
            bytes_max,
            config["message.timestamp.before.max.ms"],
            config["message.timestamp.after.max.ms"],
        )
    )
    check_record_sizes(rows, bytes_max, _encoded_bytes)
    by_partition: dict[int, list[Rows]] = {}
    for number, piece in RowPlacer(partition_count, first_partition, bytes_max).place(rows):
        by_partition.setdefault(number, []).append(piece)
    for number, pieces in sorted(by_partition.items()):
        yield number, pieces[0].joined(pieces[1:]).columns()


def _encoded_bytes(rows: Rows) -> int:
    values, keys, timestamps, headers = rows.columns()
    batch = BatchEncoder(0).encode_columns(values, keys, timestamps, headers, timestamp_ms=0)
    return len(batch)
