"""`eoslog produce`: the lines of standard input become records.

With --name the producer keeps its place over restarts: the same input given again goes on where the
last run stopped, even if that one was killed.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import BinaryIO

import click

import eoslog
from eoslog.bindings.partitioner import partition_for_key
from eoslog.cli.completion import complete_topics, complete_transactional_ids
from eoslog.cli.options import (
    Settings,
    as_moment_ms,
    counted,
    echo_json,
    exclude,
    shared_options,
    standard_input,
)
from eoslog.cli.output import note_of_work_done
from eoslog.cli.records.record_format import (
    VALUES,
    Line,
    LineFormat,
    line_format,
    parse_header,
    separated_by,
)
from eoslog.errors import UnknownTopicOrPartitionError


@dataclass(frozen=True)
class Produced:
    """Result of a run: lines read, records appended, records that an earlier run had appended."""

    lines: int
    appended: int
    already_there: int


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--partition", type=click.IntRange(min=0), help="Write to this partition only.")
@click.option("--key-separator", help="A line is KEY, this text, VALUE; else it is the value.")
@click.option("-f", "--format", "form", metavar="FORMAT", help="A line has this form.")
@click.option("--key", help="The key of each record.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of each record."
)
@click.option("--timestamp", metavar="TIME", help="The time of each record.")
@click.option("--name", help="Give every run the same name and input: no line is written twice.")
@click.option(
    "--transactional-id",
    metavar="ID",
    shell_complete=complete_transactional_ids,
    help="Write all lines in one transaction.",
)
@shared_options
def produce(
    settings: Settings,
    topic: str,
    partition: int | None,
    key_separator: str | None,
    form: str | None,
    key: str | None,
    headers: tuple[str, ...],
    timestamp: str | None,
    name: str | None,
    transactional_id: str | None,
) -> None:
    r"""Write each line of standard input to TOPIC as one record, without its line end.

    A FORMAT has kcat's tokens, with a text between two of them: %s value, %k key, %h headers
    (a=1,b=2), %T timestamp in milliseconds, %p partition. Without %s the value is null.
    """
    exclude({"--name": name, "--transactional-id": transactional_id})
    exclude({"--key-separator": key_separator, "--format": form})
    same = Line(
        None,
        None if key is None else key.encode(),
        tuple(map(parse_header, headers)),
        None if timestamp is None else as_moment_ms(timestamp, "--timestamp"),
        partition,
    )
    format_ = _format(key_separator, form)
    has_place = format_.has_place or partition is not None or key is not None
    with settings.open() as store:
        found = store.topics().get(topic)
        if found is None:
            raise UnknownTopicOrPartitionError(f"no topic {topic!r} in {store.path}")
        if partition is not None and partition >= found.partitions:
            raise UnknownTopicOrPartitionError(
                f"no partition {partition} in topic {topic!r}, which has {found.partitions}"
            )
        if name is not None and not has_place and found.partitions > 1:
            raise click.UsageError(
                f"topic {topic!r} has {found.partitions} partitions: with --name say --partition "
                "or --key-separator, so that a line goes to the same partition in every run"
            )
        with counted_lines(read_lines(standard_input(), format_, same)) as lines:
            if transactional_id is not None:
                done = produce_transaction(store, topic, lines, transactional_id)
            else:
                done = produce_lines(store, topic, found.partitions, lines, name)
    if settings.as_json:
        echo_json({"topic": topic, **asdict(done)})
    else:
        how = ", in one transaction" if transactional_id is not None else ""
        skipped = f", {done.already_there:,} were there already" if name is not None else ""
        with note_of_work_done():
            click.echo(
                f"{counted(done.appended, 'record')} appended to {topic}{skipped}{how}", err=True
            )


def _format(key_separator: str | None, form: str | None) -> LineFormat:
    if form is not None:
        return line_format(form)
    if key_separator == "":
        raise click.UsageError("--key-separator: at least one character")
    return VALUES if key_separator is None else separated_by(key_separator)


@contextmanager
def counted_lines(lines: Iterable[Line]) -> Iterator[Iterable[Line]]:
    """Show on the terminal how many lines have been read, unless they are typed there."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        yield lines
        return
    from rich.console import Console  # What it loads only a terminal needs.
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.completed:,} lines"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield progress.track(lines)


def read_lines(stream: BinaryIO, form: LineFormat, same: Line) -> Iterator[Line]:
    """Yield the record of each line; what a line does not have is as in `same`.

    Raises InvalidRecordError for a line that has not the form.
    """
    for number, line in enumerate(stream, 1):
        one = form.parse(line.removesuffix(b"\n"), number)
        yield Line(
            one.value,
            same.key if one.key is None else one.key,
            same.headers + one.headers,
            same.timestamp_ms if one.timestamp_ms is None else one.timestamp_ms,
            same.partition if one.partition is None else one.partition,
        )


def produce_lines(
    store: "eoslog.Store", topic: str, partitions: int, lines: Iterable[Line], name: str | None
) -> Produced:
    """Append the lines; a named producer skips those that its earlier runs appended.

    What was read before an error is appended and flushed, and the error says how many lines.
    """
    done = appended = 0
    with store.producer(name=name) as producer:
        # How many records of each partition an earlier run has appended already.
        held = {
            number: producer.next_sequence(topic, number) if name is not None else 0
            for number in range(partitions)
        }
        try:
            for value, key, headers, timestamp_ms, partition in lines:
                target = partition
                if target is None and (key is not None or partitions == 1):
                    target = partition_for_key(key, partitions) if key is not None else 0
                if target is not None and held.get(target, 0) > 0:
                    held[target] -= 1
                else:
                    producer.send(topic, value, key, target, headers or None, timestamp_ms)
                    appended += 1
                done += 1
        except (Exception, KeyboardInterrupt) as error:
            producer.flush()
            stopped = f"stopped at line {done + 1}: the lines before it, {done}, are in {topic}"
            if isinstance(error, KeyboardInterrupt):
                # It may have come at the end of the sending.
                click.echo(f"{stopped}; that line may be too", err=True)
            error.add_note(stopped)
            raise
        finally:
            producer.flush()
    return Produced(done, appended, done - appended)


def produce_transaction(
    store: "eoslog.Store", topic: str, lines: Iterable[Line], transactional_id: str
) -> Produced:
    """Append the lines in one transaction; an error, or Ctrl-C, aborts it, and says so.

    It may take as long as the store lets a transaction take.
    """
    timeout_ms = store.config["transaction.max.timeout.ms"]
    done = 0
    with store.producer(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
    ) as producer:
        producer.init_transactions()
        with producer.transaction():
            try:
                for value, key, headers, timestamp_ms, partition in lines:
                    producer.send(topic, value, key, partition, headers or None, timestamp_ms)
                    done += 1
            except (Exception, KeyboardInterrupt) as error:
                stopped = f"stopped at line {done + 1}: the transaction is aborted"
                if isinstance(error, KeyboardInterrupt):
                    click.echo(stopped, err=True)
                error.add_note(stopped)
                raise
    return Produced(done, done, 0)
