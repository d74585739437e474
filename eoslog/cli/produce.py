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
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

import eoslog
from eoslog.bindings.partitioner import partition_for_key
from eoslog.cli.options import Settings, echo_json, shared_options, standard_input
from eoslog.cli.output import note_of_work_done
from eoslog.errors import InvalidRecordError

Line = tuple[bytes | None, bytes]


@dataclass(frozen=True)
class Produced:
    """Result of a run: lines read, records appended, records that an earlier run had appended."""

    lines: int
    appended: int
    already_there: int


@click.command()
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), help="Write to this partition only.")
@click.option("--key-separator", help="A line is KEY, this text, VALUE; else it is the value.")
@click.option("--name", help="Give every run the same name and input: no line is written twice.")
@shared_options
def produce(
    settings: Settings,
    topic: str,
    partition: int | None,
    key_separator: str | None,
    name: str | None,
) -> None:
    """Write each line of standard input to TOPIC as one record, without its line end."""
    if key_separator == "":
        raise click.UsageError("--key-separator: at least one character")
    separator = key_separator.encode() if key_separator else None
    with settings.open() as store:
        found = store.topics().get(topic)
        if found is None:
            raise eoslog.errors.UnknownTopicOrPartitionError(f"no topic {topic!r} in {store.path}")
        if partition is not None and partition >= found.partitions:
            raise eoslog.errors.UnknownTopicOrPartitionError(
                f"no partition {partition} in topic {topic!r}, which has {found.partitions}"
            )
        if name is not None and partition is None and separator is None and found.partitions > 1:
            raise click.UsageError(
                f"topic {topic!r} has {found.partitions} partitions: with --name say --partition "
                "or --key-separator, so that a line goes to the same partition in every run"
            )
        with counted(read_lines(standard_input(), separator)) as lines:
            done = produce_lines(store, topic, found.partitions, lines, partition, name)
    if settings.as_json:
        echo_json({"topic": topic, **asdict(done)})
    else:
        skipped = f", {done.already_there:,} were there already" if name is not None else ""
        with note_of_work_done():
            click.echo(f"{done.appended:,} records appended to {topic}{skipped}", err=True)


@contextmanager
def counted(lines: Iterable[Line]) -> Iterator[Iterable[Line]]:
    """Show on the terminal how many lines have been read, unless they are typed there."""
    console = Console(stderr=True)
    if not console.is_terminal or sys.stdin.isatty():
        yield lines
        return
    columns = (TextColumn("{task.completed:,} lines"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress.track(lines)


def read_lines(stream: BinaryIO, separator: bytes | None) -> Iterator[Line]:
    """Key and value of each line. Raises InvalidRecordError for a line without it."""
    for number, line in enumerate(stream, 1):
        text = line.removesuffix(b"\n")
        if separator is None:
            yield None, text
            continue
        key, found, value = text.partition(separator)
        if not found:
            raise InvalidRecordError(f"line {number} has no key separator {separator.decode()!r}")
        yield key, value


def produce_lines(
    store: "eoslog.Store",
    topic: str,
    partitions: int,
    lines: Iterable[Line],
    partition: int | None,
    name: str | None,
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
            for key, value in lines:
                target = partition
                if target is None and (key is not None or partitions == 1):
                    target = partition_for_key(key, partitions) if key is not None else 0
                if target is not None and held.get(target, 0) > 0:
                    held[target] -= 1
                else:
                    producer.send(topic, value=value, key=key, partition=target)
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
