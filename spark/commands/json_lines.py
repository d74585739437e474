"""Lines of JSON: each is checked by Python's own parser, and stays as it is.

Spark's functions accept what follows a JSON text, refuse a name that an object has twice, and give
the number 1e5 as 100000.0. Here a line is one JSON text or is refused, and a key has the texts of
the line.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eoslog.spark.commands.input_files import opened_input

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[pa.RecordBatch]

_WHITE_SPACE = b" \t\r\n"


class _Number(str):
    """A number as the line has it."""

    __slots__ = ()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant)


def parse_line(line: bytes) -> Any:
    """Parse a line; numbers become texts. Raises ValueError if it is not one JSON text."""
    try:
        return _decoder.decode(line.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def key_of(content: Any, fields: Iterable[str], separator: str) -> str | None:
    """The texts of top-level fields, joined; null counts as empty text, and nulls alone as null.

    Raises ValueError for a text that UTF-8 cannot express.
    """
    cells = [_text(content.get(name)) if isinstance(content, dict) else None for name in fields]
    if all(cell is None for cell in cells):
        return None
    key = separator.join(cell or "" for cell in cells)
    if not key.isascii():
        key.encode()  # Half a surrogate pair is a UnicodeEncodeError.
    return key


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return _compact(value)


def _compact(value: Any) -> str:
    if isinstance(value, dict):
        return (
            f"{{{','.join(f'{_quoted(name)}:{_compact(item)}' for name, item in value.items())}}}"
        )
    if isinstance(value, list):
        return f"[{','.join(_compact(item) for item in value)}]"
    return value if isinstance(value, _Number) else _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class JsonLines:
    """Given to each task: lines as records, blank ones left out, with a key of these fields."""

    fields: tuple[str, ...]
    separator: str

    def __call__(self, batches: "Batches") -> "Batches":
        import pyarrow as pa

        for batch in batches:
            lines = batch.column(0)
            keys: list[str | None] = []
            taken: list[bool] = []
            for line in lines.to_pylist():
                taken.append(bool(line.strip(_WHITE_SPACE)))
                if not taken[-1]:
                    continue
                try:
                    keys.append(key_of(parse_line(line), self.fields, self.separator))
                except ValueError as error:
                    raise ValueError(f"a line {_reason(error)}") from None
            values = lines.filter(pa.array(taken)).cast(pa.string())
            yield pa.RecordBatch.from_arrays(
                [pa.array(keys, pa.string()), values], ["key", "value"]
            )


def fault_in_json(path: Path, name: str, fields: Iterable[str], separator: str) -> str | None:
    """Describe the first line that `JsonLines` refuses; None if there is none."""
    with opened_input(path, name) as file:
        for number, line in enumerate(file, 1):
            if not line.strip(_WHITE_SPACE):
                continue
            try:
                key_of(parse_line(line.removesuffix(b"\n")), fields, separator)
            except ValueError as error:
                return f"{name}, line {number}: it {_reason(error)}"
    return None


def _reason(error: ValueError) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "has half of a surrogate pair in its key, which UTF-8 cannot express"
    if isinstance(error, UnicodeDecodeError):
        return (
            f"is not JSON: byte {error.start + 1}, 0x{error.object[error.start]:02x}, is not UTF-8"
        )
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error.msg} at character {error.pos + 1}"
    return f"is not JSON: {error}"
