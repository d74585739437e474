"""Options and behavior that all commands share: --store and --json, how they print, how they fail.

A user's mistake is one line on standard error and a status, never a traceback; EOSLOG_TRACEBACK=1
in the environment shows the traceback to those who want it.
"""

import base64
import errno
import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import click

import eoslog
from eoslog.cli import output as cli_output
from eoslog.errors import EoslogError, StoreReopenedError

STORE_VARIABLE = "EOSLOG_STORE"
# The store's own error says what another user needs to read it.
STORE_PATH = click.Path(readable=False)
_DURATION = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?", re.ASCII
)
TRACEBACK_VARIABLE = "EOSLOG_TRACEBACK"
# Longest time in which a command that only reads begins again.
_BEGINNINGS_S = 30.0


@dataclass(frozen=True)
class Settings:
    """Settings from --store and --json, given before or after the command's name."""

    store_path: str | None
    as_json: bool

    def path(self) -> Path:
        """The store's directory; it is a usage error if nothing names one."""
        if self.store_path is None:
            raise click.UsageError(f"no store: give --store PATH, or set {STORE_VARIABLE}")
        if not self.store_path:
            raise click.UsageError("--store: an empty path names no store")
        return Path(self.store_path)

    @contextmanager
    def open(self) -> Iterator["eoslog.Store"]:
        """A block with the store, which must exist; open as other processes have it, if any do.

        What the block prints is out before the store is closed: an error of the close, on a full
        disk say, comes after it.
        """
        with eoslog.open(self.path(), create=False, durability=None) as store:
            yield store
            if sys.stdout is not None:
                sys.stdout.flush()

    @contextmanager
    def read(self) -> Iterator["eoslog.Store"]:
        """A block with the store, which must exist, for a command that only reads it."""
        with eoslog.open(self.path(), read_only=True) as store:
            yield store
            if sys.stdout is not None:
                sys.stdout.flush()


@contextmanager
def noted_creation(path: Path) -> Iterator[None]:
    """A block that may create the store, also if it fails: standard error says so at its end."""
    from eoslog.store.opening import is_store  # What it loads not every command needs.

    was_there = is_store(path)
    try:
        yield
    finally:
        if not was_there and is_store(path):
            with cli_output.note_of_work_done():
                click.echo(f"created a store at {path}", err=True)


def config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config and --config-file to a command, for `given_config`."""
    pairs = click.option(
        "--config", "pairs", multiple=True, metavar="NAME=VALUE", help="Kafka's names."
    )
    file = click.option(
        "--config-file",
        "file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A properties file, as Kafka's tools take it; --config goes before it.",
    )
    return pairs(file(function))


def alter_config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add those, and --delete-config."""
    removed = click.option(
        "--delete-config", "removed", multiple=True, metavar="NAME", help="Take a default again."
    )
    return config_options(removed(function))


def given_config(
    pairs: Iterable[str], file: Path | None, removed: Iterable[str] = ()
) -> dict[str, str | None]:
    """Return the settings that a command's options name; None for one that is taken back."""
    from_file: dict[str, str] = {}
    if file is not None:
        import javaproperties

        try:
            from_file = javaproperties.loads(file.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, javaproperties.InvalidUEscapeError) as error:
            raise click.BadParameter(f"{file}: {error}", param_hint="--config-file") from error
    return {**dict.fromkeys(removed), **from_file, **parse_config(pairs)}


def parse_config(pairs: Iterable[str], option: str = "--config") -> dict[str, str]:
    """Turn NAME=VALUE arguments into a config."""
    config = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        config[name] = value
    return config


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --store and --json to a command and hand them in as its first argument, `settings`.

    It also turns errors into one line: EoslogError and OSError end with status 1, arguments that
    the API refuses with status 2. A command that only reads begins again if a process opens the
    store in the midst of it, unless it has printed something.
    """

    @click.option(
        "--store", "store_path", type=STORE_PATH, envvar=STORE_VARIABLE, help="The store."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_context
    def command(
        ctx: click.Context, /, store_path: str | None, as_json: bool, **arguments: Any
    ) -> Any:
        outer = ctx.find_object(Settings) or Settings(None, False)
        named = ctx.get_parameter_source("store_path") is click.core.ParameterSource.COMMANDLINE
        path = store_path if named or outer.store_path is None else outer.store_path
        settings = Settings(path, as_json or outer.as_json)
        # A command's own subcommands find what was said to it.
        ctx.obj = settings
        try:
            result = _called(function, settings, arguments)
            if sys.stdout is not None:
                sys.stdout.flush()  # What does not go out is an error of the command.
        except (EoslogError, OSError, ValueError, TypeError) as error:
            if os.environ.get(TRACEBACK_VARIABLE) or isinstance(error, BrokenPipeError):
                raise
            if isinstance(error, OSError) and error.filename == cli_output.NAME and sys.stdout:
                cli_output.give_up(sys.stdout.fileno())
            raise as_click_error(error) from error
        return result

    # The name, the help text, and the options that click has noted so far.
    return functools.update_wrapper(command, function)


def _called(
    function: Callable[..., Any], settings: Settings, arguments: Mapping[str, object]
) -> Any:
    until_s = time.monotonic() + _BEGINNINGS_S
    while True:
        try:
            return function(settings, **arguments)
        except StoreReopenedError:
            if cli_output.has_printed() or time.monotonic() > until_s:
                raise


@contextmanager
def shown_failure() -> Iterator[list[Exception]]:
    """A block whose failure is shown, and does not end the command; the list has it then."""
    shown: list[Exception] = []
    try:
        yield shown
    except (EoslogError, OSError) as error:
        of_output = isinstance(error, OSError) and error.filename == cli_output.NAME
        if of_output or os.environ.get(TRACEBACK_VARIABLE):
            raise
        standard_output().flush()  # On a terminal it comes after what was printed before it.
        as_click_error(error).show()
        shown.append(error)


def as_click_error(error: Exception) -> click.ClickException:
    """Status 2 for arguments that were refused, 1 for everything that went wrong after them."""
    if isinstance(error, EoslogError):
        message = f"{error} ({type(error).__name__})"
        wrong_use = isinstance(error, ValueError)
    elif isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        message, wrong_use = f"{place}{error.strerror or error}", False
    else:
        message, wrong_use = str(error), True
    message = "; ".join([message, *getattr(error, "__notes__", ())])
    message = message.replace("\n", "\\n")  # Of a path, say: it is one line.
    return click.UsageError(message) if wrong_use else click.ClickException(message)


def exclude(options: Mapping[str, object]) -> None:
    """Raise UsageError if more than one of these options is given: is not None or False."""
    given = [name for name, one in options.items() if one is not None and one is not False]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} exclude each other")


def confirm(question: str) -> None:
    """Ask, and end the command unless the answer is yes. OSError without a terminal."""
    _buffer_of(sys.stdin, "standard input")
    click.confirm(question, abort=True, err=True)


def as_moment_ms(text: str, option: str, instead: str = "") -> int:
    """Milliseconds since 1970 of a time in ISO 8601; without a zone it is in UTC, as in Kafka.

    `instead` is what else the option takes, for the error.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r:.80} is no time like 2026-01-31T12:00:00.000{instead}", param_hint=option
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def as_duration_ms(text: str, option: str) -> int:
    """Milliseconds of a duration in ISO 8601, of days and shorter units, as in Kafka."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise click.BadParameter(
            f"{text!r:.80} is no duration like P7D or PT1H30M", param_hint=option
        )
    days, hours, minutes, seconds = (float(one or 0) for one in found.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def standard_input() -> BinaryIO:
    """Standard input, as bytes. OSError if the command was started without one."""
    return _buffer_of(sys.stdin, "standard input")


def standard_output() -> BinaryIO:
    """Standard output, as bytes. OSError if the command was started without one."""
    return _buffer_of(sys.stdout, cli_output.NAME)


def _buffer_of(stream: TextIO | None, name: str) -> BinaryIO:
    if stream is None:
        raise OSError(errno.EBADF, "it is closed", name)
    return stream.buffer


def counted(count: int, what: str) -> str:
    """Return a count with the name of what it counts: "1 topic", "2 topics"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def echo_json(data: Any) -> None:
    """Print one JSON document on one line. OSError if the command has no standard output."""
    standard_output()
    click.echo(json_line(data), nl=False)


def json_line(data: Any) -> str:
    """One JSON document on one line; for long output, which `echo` would flush line by line."""
    return f"{_encode(data)}\n"


def json_value(value: Any) -> Any:
    """Bytes are text where they are UTF-8, else {"base64": ...}; paths are text."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


_encode = json.JSONEncoder(ensure_ascii=False, default=json_value).encode
