"""`eoslog consume`: print the records of a topic."""

from collections.abc import Iterator

import click

import eoslog
from eoslog import Record, TopicPartition
from eoslog.bindings.partition_log import Columns
from eoslog.bindings.record_text import RecordText
from eoslog.cli.options import Settings, shared_options, standard_output
from eoslog.cli.output import end_with_reader
from eoslog.store.store import engine_of

POLL_RECORDS_MAX = 1000
FETCH_BYTES = 1 << 20
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


@click.command()
@click.argument("topic")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True)
@click.option("--from-beginning", is_flag=True, help="The default: from the oldest record.")
@click.option(
    "--offset", type=click.IntRange(min=0), help="Start at this offset of each partition."
)
@click.option("--max-records", type=click.IntRange(min=0), help="Stop after so many.")
@click.option("--key-separator", help="Print the key and this text before each value.")
@click.option(
    "--isolation",
    type=click.Choice(ISOLATION_LEVELS),
    default="read_committed",
    show_default=True,
    help="Whether records of open and of aborted transactions are left out.",
)
@click.option("--group", help="Begin where this group stands, and move it on.")
@shared_options
def consume(
    settings: Settings,
    topic: str,
    partitions: tuple[int, ...],
    from_beginning: bool,
    offset: int | None,
    max_records: int | None,
    key_separator: str | None,
    isolation: str,
    group: str | None,
) -> None:
    """Print the records that TOPIC holds now, each partition in order, one value a line.

    With --json each record is a JSON object on a line of its own, with its partition, offset,
    timestamp, key and headers; bytes that are no UTF-8 become {"base64": "..."}.

    With --group the first record is the one at the group's committed offset, the oldest where it
    has none; the offset after the last one printed is committed, once all of them are printed.
    """
    if from_beginning and offset is not None:
        raise click.UsageError("--from-beginning and --offset exclude each other")
    if group is not None and (from_beginning or offset is not None):
        raise click.UsageError("--group says where to begin: no --offset, no --from-beginning")
    separator = key_separator.encode() if key_separator is not None else None
    out = standard_output()
    end_with_reader()
    opened = settings.read() if group is None else settings.open()  # It moves the group on.
    with opened as store, store.consumer(group, isolation, "none") as consumer:
        reader = TopicReader(store, consumer, topic, partitions)
        if offset is not None:
            reader.start_at(offset)
        elif group is not None:
            reader.start_at_committed()
        if settings.as_json:
            text = RecordText("jsonl")
            for where, columns, count in reader.fetches(max_records, isolation):
                with text.encode(where.topic, where.partition, columns, count) as lines:
                    out.write(lines)
        else:
            for record in reader.records(max_records):
                key = b"" if separator is None else (record.key or b"") + separator
                out.write(key + (record.value or b"") + b"\n")
        out.flush()
        if group is not None and reader.moved:
            consumer.commit(reader.moved)


class TopicReader:
    """Reads partitions of a topic one after the other, from the oldest record on or from elsewhere,
    to where the log ended when this was made. `moved` says how far it came, where it came on.
    """

    def __init__(
        self,
        store: "eoslog.Store",
        consumer: "eoslog.Consumer",
        topic: str,
        partitions: tuple[int, ...],
    ) -> None:
        found = store.topics().get(topic)
        if found is None:
            raise eoslog.errors.UnknownTopicOrPartitionError(f"no topic {topic!r} in {store.path}")
        # One that is named twice is read once, where it is named first.
        numbers = dict.fromkeys(partitions) or range(found.partitions)
        self._targets = [TopicPartition(topic, number) for number in numbers]
        self._consumer = consumer
        self._engine = engine_of(store)
        self._starts = consumer.beginning_offsets(self._targets)
        self._ends = consumer.end_offsets(self._targets)
        self.moved: dict[TopicPartition, int] = {}

    def start_at(self, offset: int) -> None:
        """Begin at an offset, the same in each partition. Raises OffsetOutOfRangeError."""
        for target in self._targets:
            check_offset(target, offset, self._starts[target], self._ends[target])
            self._starts[target] = offset

    def start_at_committed(self) -> None:
        """Begin where the consumer's group stands, as far as it does; else at the oldest record."""
        for target, offset in self._consumer.committed(self._targets).items():
            if offset is not None:
                self._starts[target] = max(offset, self._starts[target])

    def records(self, max_records: int | None) -> Iterator[Record]:
        """The records, at most so many."""
        consumer = self._consumer
        left = max_records
        for target in self._targets:
            start, end = self._starts[target], self._ends[target]
            consumer.assign([target])
            consumer.seek(target, start)
            while consumer.position(target) < end and (left is None or left > 0):
                wanted = POLL_RECORDS_MAX if left is None else min(left, POLL_RECORDS_MAX)
                records = consumer.poll(timeout=0.0, max_records=wanted)
                if not records:
                    break
                yield from records
                left = None if left is None else left - len(records)
            if consumer.position(target) > start:
                self.moved[target] = consumer.position(target)

    def fetches(
        self, max_records: int | None, isolation: str
    ) -> Iterator[tuple[TopicPartition, Columns, int]]:
        """The records as columns: a fetch, and how many of its records are meant."""
        left = max_records
        for target in self._targets:
            position, end = self._starts[target], self._ends[target]
            log = self._engine.partition(*target)
            while position < end and (left is None or left > 0):
                wanted = -1 if left is None else left
                columns = log.fetch_columns(position, FETCH_BYTES, wanted, isolation)
                if columns is None or columns.next_offset == position:
                    break
                count = int(columns.offsets.searchsorted(end))
                yield target, columns, count
                left = None if left is None else left - count
                position = columns.next_offset if count == columns.record_count else end
            if position > self._starts[target]:
                self.moved[target] = position


def check_offset(target: TopicPartition, offset: int, start: int, end: int) -> None:
    """Raise OffsetOutOfRangeError for an offset that the partition does not reach."""
    if not start <= offset <= end:
        raise eoslog.errors.OffsetOutOfRangeError(
            f"no offset {offset} in {target.topic}-{target.partition}, which has {start} to {end}"
        )
