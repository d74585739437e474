"""`eoslog dump`: what the files of a partition hold, in the words of Kafka's log dump."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from eoslog.cli.options import (
    Settings,
    json_line,
    shared_options,
    shown_failure,
    standard_output,
)
from eoslog.cli.output import end_with_reader
from eoslog.inspect.file_dump import Fields, dump_file
from eoslog.inspect.record_decoders import (
    UNKNOWN_TYPE,
    Decoded,
    Decoder,
    OwnKey,
    decode_offset_record,
    decode_transaction_record,
    decoder_of,
)
from eoslog.storage.partition_directory import base_offset_of

# Shown as Kafka shows a number that may be absent.
_OPTIONAL_NUMBERS = frozenset({"deleteHorizonMs", "currentTxnFirstOffset"})
_TOMBSTONE = "<DELETE>"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    *("--deep", "--deep-iteration", "--print-data-log"),
    is_flag=True,
    help="Also the records of each batch.",
)
@click.option(
    "--transaction-log-decoder",
    "transaction_log",
    is_flag=True,
    help="Records as those of __transaction_state. Known by the directory's name as well.",
)
@click.option(
    "--offsets-decoder",
    "offsets",
    is_flag=True,
    help="Records as those of __consumer_offsets. Known by the directory's name as well.",
)
@shared_options
def dump(
    settings: Settings, files: tuple[Path, ...], deep: bool, transaction_log: bool, offsets: bool
) -> None:
    """Print the batches of .log FILES, and the entries of indexes and snapshots.

    No store is opened: it works on any file of this format, also while another process writes it.
    A decoder prints records too. With --json each entry is a JSON object on a line of its own.
    """
    if transaction_log and offsets:
        raise click.UsageError("--transaction-log-decoder and --offsets-decoder exclude each other")
    standard_output()
    end_with_reader()
    named = _decoder_named(transaction_log, offsets)
    failed = False
    for path in files:
        with shown_failure() as shown:
            path.stat()  # One that is not there is named as such, whatever its name is.
            decoder = named if named is not None else decoder_of(path)
            entries = dump_file(path, deep=deep or named is not None, decoder=decoder)
            if not settings.as_json:
                head = f"Dumping {path}"
                if path.suffix == ".log":
                    head += f"\nLog starting offset: {base_offset_of(path)}"
                click.echo(head)
            _print(settings, path, entries)
        failed |= bool(shown)
    if failed:
        click.get_current_context().exit(1)


def _decoder_named(transaction_log: bool, offsets: bool) -> Decoder | None:
    if transaction_log:
        return decode_transaction_record
    return decode_offset_record if offsets else None


def _print(settings: Settings, path: Path, entries: Iterable[Fields]) -> None:
    for fields in entries:
        if settings.as_json:
            sys.stdout.write(json_line({"file": path, **fields}))
        elif "invalidBytes" in fields:
            click.echo(f"Found {fields['invalidBytes']} invalid bytes at the end of {path.name}")
        else:
            sys.stdout.write(as_text(fields))


def as_text(fields: Fields) -> str:
    """`name: value` for each field; a record, which has no base offset, is set off by a bar."""
    bar = "| " if "keySize" in fields else ""
    pairs = [
        f"{name}: {_text(name, value)}"
        for name, value in fields.items()
        if name not in ("key", "payload", "undecodable")
    ]
    return bar + " ".join([*pairs, *_contents(fields)]) + "\n"


def _contents(fields: Fields) -> list[str]:
    """A record's key and payload, as far as it has them, in the words of Kafka's dump."""
    key, payload, offset = fields.get("key"), fields.get("payload"), fields.get("offset")
    reason = fields.get("undecodable")
    if isinstance(key, OwnKey):
        reason = f"{UNKNOWN_TYPE}{key['type']}"
    if reason is not None and reason.startswith(UNKNOWN_TYPE):
        return [f"key: {reason} at offset {offset}, skipping."]
    if reason is not None:
        return [f"key: Error at offset {offset}, skipping. {reason}"]
    if isinstance(key, Decoded) and payload is None:
        payload = _TOMBSTONE
    named = (("key", key), ("payload", payload))
    return [f"{name}: {_text(name, value)}" for name, value in named if value is not None]


def _text(name: str, value: Any) -> str:
    if name in _OPTIONAL_NUMBERS:
        return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
    if name == "headerKeys":
        return f"[{','.join(value)}]"
    if isinstance(value, Decoded):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "null" if value is None else str(value)
