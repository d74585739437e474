"""`eoslog dump`: what the files of a partition hold, in the words of Kafka's log dump."""

import sys
from pathlib import Path
from typing import Any

import click

from eoslog.cli_options import Settings, json_line, json_value, shared_options
from eoslog.file_dump import base_offset_of, dump_file


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--deep", is_flag=True, help="Also the records of each batch.")
@shared_options
def dump(settings: Settings, files: tuple[Path, ...], deep: bool) -> None:
    """Print the batches of .log FILES, and the entries of indexes and snapshots.

    No store is opened: it works on any file of this format, also while another process writes it.
    With --json each entry is a JSON object on a line of its own.
    """
    for path in files:
        if not settings.as_json:
            click.echo(f"Dumping {path}")
            if path.suffix == ".log":
                click.echo(f"Log starting offset: {base_offset_of(path)}")
        for fields in dump_file(path, deep=deep):
            line = json_line({"file": path, **fields}) if settings.as_json else as_text(fields)
            sys.stdout.write(line)


def as_text(fields: dict[str, Any]) -> str:
    """`name: value` for each field; a record, which has no base offset, is set off by a bar."""
    bar = "| " if "keySize" in fields else ""
    return bar + " ".join(f"{name}: {_text(value)}" for name, value in fields.items()) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        value = json_value(value)
    return "null" if value is None else str(value)
