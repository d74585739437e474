"""`eoslog consume`: print the records of topics."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import BinaryIO

import click

from eoslog import Record
from eoslog.cli.completion import complete_groups, complete_topics
from eoslog.cli.options import Settings, exclude, shared_options, standard_output
from eoslog.cli.output import end_with_reader, note_of_work_done, reader_is_gone
from eoslog.cli.records.record_format import Encode, record_encoder
from eoslog.cli.records.topic_reader import (
    FETCH_BYTES,
    FETCH_RECORDS,
    Bound,
    TopicReader,
    WantedPartitions,
    Write,
)
from eoslog.errors import LogClosedError, OffsetOutOfRangeError, StoreReopenedError
from eoslog.storage.unified_log import UnifiedLog

ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True)
@click.option("--from-beginning", is_flag=True, help="The default: from the oldest record.")
@click.option(
    "--offset", type=click.IntRange(min=0), help="Start at this offset of each partition."
)
@click.option("--from", "start", metavar="BOUND", help="Start here.")
@click.option("--to", "end", metavar="BOUND", help="Stop before this.")
@click.option("--follow", is_flag=True, help="Wait for more records, until Ctrl-C.")
@click.option("--max-records", type=click.IntRange(min=0), help="Stop after so many.")
@click.option("--key-separator", help="Print the key and this text before each value.")
@click.option("-f", "--format", "form", metavar="FORMAT", help="Print each record in this form.")
@click.option(
    "--isolation",
    type=click.Choice(ISOLATION_LEVELS),
    default="read_committed",
    show_default=True,
    help="Whether records of open and of aborted transactions are left out.",
)
@click.option(
    "--group", shell_complete=complete_groups, help="Begin where this group stands, and move it on."
)
@shared_options
def consume(
    settings: Settings,
    topic: str,
    partitions: tuple[int, ...],
    from_beginning: bool,
    offset: int | None,
    start: str | None,
    end: str | None,
    follow: bool,
    max_records: int | None,
    key_separator: str | None,
    form: str | None,
    isolation: str,
    group: str | None,
) -> None:
    """Print the records that TOPIC holds now, each partition in order, one value a line.

    TOPIC with ^ before it is a regular expression: of all topics whose names begin with it.

    A BOUND is an offset of each partition, a time (2026-01-31T12:00:00, in UTC without a zone), an
    age (PT10M), which stand for the first record at or after it, or "latest", the end.

    A FORMAT has kcat's tokens: %t topic, %p partition, %o offset, %T timestamp in milliseconds, %k
    key, %s value, %h headers, %K and %S the lengths of key and value (-1 for null), %R that of the
    value as four bytes, %%; after a backslash n, r, t, xNN or a backslash. A line end is printed
    where it has one.

    With --json each record is a JSON object on a line of its own, with its partition, offset,
    timestamp, key and headers; bytes that are no UTF-8 become {"base64": "..."}.

    With --group the first record is the one at the group's committed offset, the oldest where it
    has none; the offset after the last one printed is committed, once all of them are printed.
    """
    begins = {"--from-beginning": from_beginning, "--offset": offset, "--from": start}
    exclude(begins)
    exclude({"--json": settings.as_json, "--format": form, "--key-separator": key_separator})
    if group is not None and any(one not in (None, False) for one in begins.values()):
        raise click.UsageError(
            "--group says where to begin: no --offset, no --from, no --from-beginning"
        )
    if follow:
        exclude({"--follow": follow, "--to": end})
        exclude({"--follow": follow, "--group": group})
    first = Bound(offset) if offset is not None else None
    if start is not None:
        first = Bound.parse(start, "--from")
    last = None if end is None else Bound.parse(end, "--to")
    wanted = WantedPartitions(topic, partitions)
    out = standard_output()
    end_with_reader()
    if settings.as_json:
        write = _json_writer(out, isolation)
    else:
        write = _text_writer(out, isolation, _encoder(form, key_separator))
    reader = TopicReader(wanted, isolation, write, max_records, first)
    if follow:
        _follow(settings, reader, out)
        return
    opened = settings.read() if group is None else settings.open()  # It moves the group on.
    with opened as store:
        reader.attach(store)
        targets = reader.take_up()
        ends = reader.ends(last)
        if group is None:
            reader.read(ends)
            return
        with store.consumer(group, isolation) as consumer:
            reader.go_to(consumer.committed(targets))
            reader.read(ends)
            out.flush()
            if reader.moved:
                consumer.commit(reader.moved)


def _encoder(form: str | None, key_separator: str | None) -> Encode:
    if form is not None:
        return record_encoder(form)
    if key_separator is None:
        return lambda record: (record.value or b"") + b"\n"
    mark = key_separator.encode()
    return lambda record: (record.key or b"") + mark + (record.value or b"") + b"\n"


def _text_writer(out: BinaryIO, isolation: str, encode: Callable[[Record], bytes]) -> Write:
    def write(log: UnifiedLog, position: int, upper_bound: int, wanted: int) -> tuple[int, int]:
        count = FETCH_RECORDS if wanted < 0 else min(wanted, FETCH_RECORDS)
        records, following = log.fetch_records(position, count, FETCH_BYTES, isolation)
        if following > upper_bound:
            records = [one for one in records if one.offset < upper_bound]
            following = upper_bound
        for record in records:
            out.write(encode(record))
        return len(records), following

    return write


def _json_writer(out: BinaryIO, isolation: str) -> Write:
    def write(log: UnifiedLog, position: int, upper_bound: int, wanted: int) -> tuple[int, int]:
        columns = log.fetch_columns(position, FETCH_BYTES, wanted, isolation, upper_bound)
        if columns is None:
            return 0, position
        where = log.topic_partition
        with text.encode(where.topic, where.partition, columns, columns.record_count) as lines:
            out.write(lines)
        return columns.record_count, min(columns.next_offset, upper_bound)

    from eoslog.bindings.record_text import RecordText  # It loads what only this needs.

    text = RecordText("jsonl")
    return write


def _follow(settings: Settings, reader: TopicReader, out: BinaryIO) -> None:
    """Print what comes, until Ctrl-C, enough records, or the end of the reader of the output.

    A store that another process opens later is opened again, and read on from where it was.
    """
    with _ended_by_interrupt() as stops:
        while True:
            try:
                with settings.read() as store:
                    reader.attach(store)
                    while not stops() and not reader.is_done and not reader_is_gone():
                        _follow_once(reader, out, stops)
                    return
            except StoreReopenedError:
                continue


def _follow_once(reader: TopicReader, out: BinaryIO, stops: Callable[[], bool]) -> None:
    """Print what there is and wait for more, or for a reason to look around."""
    try:
        reader.take_up()
        reader.read(reader.ends(), stops)
        out.flush()
        if not reader.is_done and not stops():
            reader.wait()
    except OffsetOutOfRangeError:
        skipped = reader.skip_what_is_gone()
        if not skipped:
            raise
        with note_of_work_done():
            for one in skipped:
                click.echo(f"{one} were deleted before they were read", err=True)
    except LogClosedError:
        reader.reopen()  # Of a topic that is deleted, unless the store is closed.


@contextmanager
def _ended_by_interrupt() -> Iterator[Callable[[], bool]]:
    """A block that Ctrl-C ends between two records; yields the function that says so.

    A second one ends the command as ever.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
