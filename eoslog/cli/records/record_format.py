"""Format strings, with kcat's tokens: of records that are printed, and of lines that are read."""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import click

from eoslog import Record
from eoslog.errors import InvalidRecordError

Headers = tuple[tuple[str, bytes | None], ...]
Encode = Callable[[Record], bytes]

OPTION = "--format"
_NULL = b"NULL"  # What kcat prints for a header without a value.
_PART = re.compile(r"%(?P<token>.?)|\\(?P<escape>x[0-9a-fA-F]{2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_LINE_TOKENS = {"k": rb".*?", "s": rb".*?", "h": rb".*?", "T": rb"\d{1,18}", "p": rb"\d{1,9}"}


class Line(NamedTuple):
    """One record to be written."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class LineFormat(NamedTuple):
    """Form of a line: `parse` makes a record of it and its number, `has_place` is True if the line
    says where that goes.
    """

    parse: Callable[[bytes, int], Line]
    has_place: bool


VALUES = LineFormat(lambda line, _: Line(line), has_place=False)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers_text(headers: Headers) -> bytes:
    pairs = (name.encode() + b"=" + (_NULL if one is None else one) for name, one in headers)
    return b",".join(pairs)


_TOKENS: dict[str, Encode] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % _length(record.key),
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % _length(record.value),
    "R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
    "h": lambda record: _headers_text(record.headers),
}


def record_encoder(text: str) -> Encode:
    """Return the function that prints a record in a format. Raises BadParameter for a bad one."""
    parts = [
        _TOKENS[one] if isinstance(one, str) else _constant(one) for one in _parts(text, _TOKENS)
    ]
    return lambda record: b"".join([part(record) for part in parts])


def line_format(text: str) -> LineFormat:
    """Return the format that a text stands for; `parse` raises InvalidRecordError.

    Raises BadParameter for a bad one.
    """
    parts = list(_parts(text, _LINE_TOKENS))
    if parts and isinstance(parts[-1], bytes):
        parts[-1] = parts[-1].removesuffix(b"\n")
    tokens = [one for one in parts if isinstance(one, str)]
    for before, one in pairwise(parts):
        if isinstance(before, str) and isinstance(one, str):
            reason = f"{text!r}: a text must stand between %{before} and %{one}"
            raise click.BadParameter(reason, param_hint=OPTION)
    for one in tokens:
        if tokens.count(one) > 1:
            raise click.BadParameter(f"{text!r}: %{one} stands in it twice", param_hint=OPTION)
    pattern = re.compile(
        b"".join(
            re.escape(one) if isinstance(one, bytes) else b"(?P<%b>%b)" % (one.encode(), how)
            for one in parts
            for how in [b"" if isinstance(one, bytes) else _LINE_TOKENS[one]]
        ),
        re.DOTALL,
    )

    def parse(line: bytes, number: int) -> Line:
        found = pattern.fullmatch(line)
        if found is None:
            raise InvalidRecordError(f"line {number} is not of the form {text!r}")
        fields = found.groupdict()
        timestamp, partition = fields.get("T"), fields.get("p")
        return Line(
            fields.get("s"),
            fields.get("k"),
            _parse_headers(fields.get("h") or b"", number),
            None if timestamp is None else int(timestamp),
            None if partition is None else int(partition),
        )

    return LineFormat(parse, has_place=bool({"k", "p"} & set(tokens)))


def separated_by(separator: str) -> LineFormat:
    """Return the format of a key, a separator and a value."""
    mark = separator.encode()

    def parse(line: bytes, number: int) -> Line:
        key, found, value = line.partition(mark)
        if not found:
            raise InvalidRecordError(f"line {number} has no key separator {separator!r}")
        return Line(value, key)

    return LineFormat(parse, has_place=True)


def parse_header(pair: str) -> tuple[str, bytes]:
    """Return the header that an option names. Raises BadParameter."""
    name, equals, value = pair.partition("=")
    if not equals:
        raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--header")
    return name, value.encode()


def _constant(text: bytes) -> Encode:
    return lambda _: text


def _parts(text: str, tokens: "dict[str, Encode] | dict[str, bytes]") -> Iterator[bytes | str]:
    """Yield the texts of a format as bytes, and the letters of its tokens as str."""
    gathered = b""
    for part in _PART.finditer(text):
        token, escape = part["token"], part["escape"]
        if token is not None and token != "%":
            if token not in tokens:
                known = " ".join(f"%{one}" for one in tokens)
                reason = f"{text!r}: there is no %{token}, only {known}"
                raise click.BadParameter(reason, param_hint=OPTION)
            if gathered:
                yield gathered
                gathered = b""
            yield token
        elif token is not None:
            gathered += b"%"
        elif escape is None:
            gathered += part["text"].encode()
        elif escape in _ESCAPES:
            gathered += _ESCAPES[escape]
        elif len(escape) > 1:
            gathered += bytes.fromhex(escape[1:])
        else:
            reason = rf"{text!r}: there is no \{escape}, only \n \r \t \\ and \xNN"
            raise click.BadParameter(reason, param_hint=OPTION)
    if gathered:
        yield gathered


def _parse_headers(text: bytes, number: int) -> Headers:
    if not text:
        return ()
    headers = []
    for pair in text.split(b","):
        name, equals, value = pair.partition(b"=")
        if not equals:
            shown = pair.decode(errors="replace")
            raise InvalidRecordError(f"line {number}: header {shown!r:.80} is not NAME=VALUE")
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError as error:
            reason = f"line {number}: the name of header {name!r:.80} is not UTF-8"
            raise InvalidRecordError(reason) from error
    return tuple(headers)
