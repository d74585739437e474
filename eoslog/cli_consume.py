"""`eoslog consume`: print the records of a topic."""

import sys
from collections.abc import Iterator

import click

import eoslog
from eoslog import Record, TopicPartition
from eoslog.cli_options import Settings, json_line, shared_options

POLL_RECORDS_MAX = 1000


@click.command()
@click.argument("topic")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True)
@click.option("--from-beginning", is_flag=True, help="The default: from the oldest record.")
@click.option(
    "--offset", type=click.IntRange(min=0), help="Start at this offset of each partition."
)
@click.option("--max-records", type=click.IntRange(min=0), help="Stop after so many.")
@click.option("--key-separator", help="Print the key and this text before each value.")
@shared_options
def consume(
    settings: Settings,
    topic: str,
    partitions: tuple[int, ...],
    from_beginning: bool,
    offset: int | None,
    max_records: int | None,
    key_separator: str | None,
) -> None:
    """Print the records that TOPIC holds now, each partition in order, one value a line.

    With --json each record is a JSON object on a line of its own, with its partition, offset,
    timestamp, key and headers; bytes that are no UTF-8 become {"base64": "..."}.
    """
    if from_beginning and offset is not None:
        raise click.UsageError("--from-beginning and --offset exclude each other")
    separator = key_separator.encode() if key_separator is not None else None
    out = sys.stdout.buffer
    with settings.open() as store:
        for record in read_records(store, topic, partitions, offset, max_records):
            if settings.as_json:
                out.write(json_line(record_as_json(record)).encode())
                continue
            key = b"" if separator is None else (record.key or b"") + separator
            out.write(key + (record.value or b"") + b"\n")
    out.flush()


def read_records(
    store: "eoslog.Store",
    topic: str,
    partitions: tuple[int, ...],
    offset: int | None,
    max_records: int | None,
) -> Iterator[Record]:
    """The records from `offset` (default: the oldest) to where the log ends when this starts."""
    found = store.topics().get(topic)
    if found is None:
        raise eoslog.errors.UnknownTopicOrPartitionError(f"no topic {topic!r} in {store.path}")
    targets = [TopicPartition(topic, number) for number in partitions or range(found.partitions)]
    left = max_records
    with store.consumer(auto_offset_reset="none") as consumer:
        starts, ends = consumer.beginning_offsets(targets), consumer.end_offsets(targets)
        if offset is not None:
            for target in targets:
                check_offset(target, offset, starts[target], ends[target])
            starts = dict.fromkeys(targets, offset)
        for target in targets:
            consumer.assign([target])
            consumer.seek(target, starts[target])
            while consumer.position(target) < ends[target] and (left is None or left > 0):
                wanted = POLL_RECORDS_MAX if left is None else min(left, POLL_RECORDS_MAX)
                records = consumer.poll(timeout=0.0, max_records=wanted)
                if not records:
                    break
                yield from records
                left = None if left is None else left - len(records)


def check_offset(target: TopicPartition, offset: int, start: int, end: int) -> None:
    """Raise OffsetOutOfRangeError for an offset that the partition does not reach."""
    if not start <= offset <= end:
        raise eoslog.errors.OffsetOutOfRangeError(
            f"no offset {offset} in {target.topic}-{target.partition}, which has {start} to {end}"
        )


def record_as_json(record: Record) -> dict[str, object]:
    """A record's fields by name; headers as pairs, since a name may come twice."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "headers": [list(header) for header in record.headers],
    }
