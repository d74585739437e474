"""`eoslog import` appends the records of files to a topic, `eoslog export` writes one to a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import click

import eoslog
from eoslog.cli.completion import complete_topics
from eoslog.cli.options import (
    Settings,
    as_moment_ms,
    counted,
    echo_json,
    shared_options,
    standard_input,
    standard_output,
)
from eoslog.cli.output import end_with_reader, progress_line
from eoslog.exchange.file_formats import EXPORT_FORMATS, IMPORT_FORMATS


@click.command("import")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option("--lines", is_flag=True, help="Each line is a value: --format lines.")
@click.option("--format", "file_format", type=click.Choice(IMPORT_FORMATS))
@click.option("--name", help="What the file is known by; by default its path.")
@click.option("--partition", type=click.IntRange(min=0), help="Write to this partition only.")
@click.option("--whole", is_flag=True, help="Take a last line that has no line end, too.")
@shared_options
def import_(
    settings: Settings,
    topic: str,
    files: tuple[str, ...],
    lines: bool,
    file_format: str | None,
    name: str | None,
    partition: int | None,
    whole: bool,
) -> None:
    """Append the records of each FILE to TOPIC that no import appended yet.

    A file is JSON lines as `export` writes them, or .csv or .parquet; gzip is unpacked. FILE - is
    standard input, which needs a --name. See docs/files.md.
    """
    if lines and file_format not in (None, "lines"):
        raise click.UsageError("--lines is a format: no other --format")
    if name is not None and len(files) > 1:
        raise click.UsageError("--name is that of one file")
    if "-" in files and name is None:
        raise click.UsageError("standard input needs a --name, by which it is known next time")
    with settings.open() as store:
        for file in files:
            with _noted_interrupt(), progress_line("import") as progress:
                result = eoslog.import_file(
                    store,
                    topic,
                    standard_input() if file == "-" else file,
                    format="lines" if lines else file_format,
                    name=name,
                    partition=partition,
                    whole=whole,
                    progress=progress,
                )
            if settings.as_json:
                echo_json(asdict(result))
            else:
                click.echo(_line(result))
            if result.left_bytes:
                click.echo(
                    f"{result.file}, line {result.left_line}: left out, its end is not there yet: "
                    f"{counted(result.left_bytes, 'byte')} (--whole takes it)",
                    err=True,
                )


@contextmanager
def _noted_interrupt() -> Iterator[None]:
    """A block whose Ctrl-C says what is in the topic."""
    try:
        yield
    except KeyboardInterrupt as error:
        for note in getattr(error, "__notes__", ()):
            click.echo(note, err=True)
        raise


def _line(result: "eoslog.FileImport") -> str:
    return (
        f"{result.file}: {counted(result.records, 'record')} appended to {result.topic}, "
        f"{result.already_there:,} were there already"
    )


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("file", default="-", type=click.Path())
@click.option("--format", "file_format", type=click.Choice(EXPORT_FORMATS))
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True)
@click.option("--from", "start", help="Offset, or time: of the first record.")
@click.option("--to", "end", help="Offset, or time: before the first record that is left out.")
@shared_options
def export(
    settings: Settings,
    topic: str,
    file: str,
    file_format: str | None,
    partitions: tuple[int, ...],
    start: str | None,
    end: str | None,
) -> None:
    """Write the committed records of TOPIC to FILE, or to standard output (-).

    FILE is JSON lines, or .csv or .parquet, and is replaced once the new one is whole. See
    docs/files.md.
    """
    if file == "-" and settings.as_json:
        raise click.UsageError("--json prints what was exported: name a FILE")
    stream = standard_output()
    if file == "-":
        end_with_reader()
    bounds = [_bound(one, name) for one, name in ((start, "--from"), (end, "--to"))]
    with settings.read() as store, progress_line("export") as progress:
        result = eoslog.export_topic(
            store,
            topic,
            stream if file == "-" else file,
            format=file_format,
            partitions=partitions or None,
            start=bounds[0],
            end=bounds[1],
            progress=progress,
        )
    if settings.as_json:
        found = {"file": str(result.file), "topic": topic, "partitions": result.partitions}
        echo_json({**found, "records": result.records, "file_bytes": result.file_bytes})
    elif file != "-":
        click.echo(
            f"{result.file}: {counted(result.records, 'record')} of "
            f"{counted(result.partitions, 'partition')}, {result.file_bytes / 1e6:,.1f} MB"
        )


def _bound(text: str | None, option: str) -> int | datetime | None:
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    moment_ms = as_moment_ms(text, option, " and no offset")
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment_ms)
