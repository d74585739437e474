"""Messages in Kafka's binary form, read by their definitions into the JSON that Kafka prints.

A definition is a text: `name:type` for each field, in order. A type is one of `_NUMBERS`, `string`,
`bytes`, `uuid`, an array `[type]`, or a struct `{fields}`; a question mark after it allows null. In
the flexible form lengths are compact, a struct ends with tagged fields, and its definition has
those as `#tag name:type=default`, where the JSON has them.

What cannot be read is a ValueError with the words of Kafka's own error.
"""

import base64
import json
import re
import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
}
_UUID_BYTES = 16
_NO_UUID = "AAAAAAAAAAAAAAAAAAAAAA"
_STRING_BYTES_MAX = 0x7FFF
_TOKEN = re.compile(r"\s*([\[\]{}?]|#\d+|=-?\w+|\w+:?)")
_CONTROL = re.compile(r"(?<!\\)((?:\\\\)*)\\u([0-9a-f]{4})")


class Field(NamedTuple):
    """One field; `inner` are those of a struct, or the element of an array."""

    name: str
    kind: str
    nullable: bool
    inner: tuple["Field", ...]
    tag: int | None
    default: Any


class Message:
    """A message by its definition."""

    def __init__(self, definition: str, *, flexible: bool = False) -> None:
        self._definition = definition
        self._flexible = flexible

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        tokens = [match[1] for match in _TOKEN.finditer(self._definition)]
        return tuple(_parse(tokens[::-1]))

    def read(self, data: bytes) -> dict[str, Any]:
        """The fields by name. What follows them is passed over. Raises ValueError."""
        return _Reader(data, self._flexible).struct(self.fields)


def as_json(value: Mapping[str, Any]) -> str:
    """The text that Kafka prints."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _CONTROL.sub(lambda match: f"{match[1]}\\u{match[2].upper()}", text)


def _parse(tokens: list[str]) -> Iterator[Field]:
    """The fields up to the end of a struct; the next token is the last one."""
    while tokens and tokens[-1] != "}":
        tag = None
        if tokens[-1].startswith("#"):
            tag = int(tokens.pop()[1:])
        yield _parse_type(tokens.pop().rstrip(":"), tokens, tag)


def _parse_type(name: str, tokens: list[str], tag: int | None = None) -> Field:
    kind = tokens.pop()
    inner: tuple[Field, ...] = ()
    if kind == "[":
        inner = (_parse_type(name, tokens),)
        tokens.pop()
    elif kind == "{":
        inner = tuple(_parse(tokens))
        tokens.pop()
    nullable = bool(tokens) and tokens[-1] == "?"
    if nullable:
        tokens.pop()
    default: Any = {"[": [], "{": None, "uuid": _NO_UUID}.get(kind, 0)
    if tokens and tokens[-1].startswith("="):
        default = int(tokens.pop()[1:])
    return Field(name, kind, nullable, inner, tag, default)


class _Reader:
    def __init__(self, data: bytes, flexible: bool) -> None:
        self._data = data
        self._at = 0
        self._flexible = flexible

    def struct(self, fields: tuple[Field, ...]) -> dict[str, Any]:
        found = {field.name: self._value(field) for field in fields if field.tag is None}
        tagged = self._tagged(fields) if self._flexible else {}
        return {
            field.name: (found if field.tag is None else tagged)[field.name]
            for field in fields
            if field.tag is None or tagged.get(field.name, field.default) != field.default
        }

    def _tagged(self, fields: tuple[Field, ...]) -> dict[str, Any]:
        by_tag = {field.tag: field for field in fields if field.tag is not None}
        found = {}
        for _ in range(self._varint()):
            field = by_tag.get(self._varint())
            size_bytes = self._varint()
            if field is None:
                self._array(size_bytes)
            else:
                found[field.name] = self._value(field)
        return found

    def _value(self, field: Field) -> Any:
        kind = field.kind
        if kind in _NUMBERS:
            return _NUMBERS[kind].unpack(self._take(_NUMBERS[kind].size))[0]
        if kind == "uuid":
            return base64.urlsafe_b64encode(self._take(_UUID_BYTES)).decode().rstrip("=")
        if kind == "{":
            if field.nullable and self._value(Field("", "int8", False, (), None, 0)) < 0:
                return None
            return self.struct(field.inner)
        count = self._length(wide=kind != "string")
        if count < 0:
            if field.nullable:
                return None
            raise ValueError(f"non-nullable field {field.name} was serialized as null")
        if kind == "[":
            left = len(self._data) - self._at
            if count > left:
                raise ValueError(
                    f"Tried to allocate a collection of size {count}, but there are only {left} "
                    "bytes remaining."
                )
            return [self._value(field.inner[0]) for _ in range(count)]
        if kind == "bytes":
            return base64.b64encode(self._array(count)).decode()
        if count > _STRING_BYTES_MAX:
            raise ValueError(f"string field {field.name} had invalid length {count}")
        return self._array(count).decode("utf-8", "replace")

    def _length(self, *, wide: bool) -> int:
        if self._flexible:
            return self._varint() - 1
        number = _NUMBERS["int32" if wide else "int16"]
        return int(number.unpack(self._take(number.size))[0])

    def _varint(self) -> int:
        found = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            found = (found | (byte & 0x7F) << shift) & 0xFFFFFFFF
            if byte < 0x80:
                return found - (1 << 32) if found >= 1 << 31 else found
        raise ValueError(
            "Varint is too long, the most significant bit in the 5th byte is set, converted "
            f"value: {found:x}"
        )

    def _array(self, size_bytes: int) -> bytes:
        left = len(self._data) - self._at
        if size_bytes > left:
            raise ValueError(
                f"Error reading byte array of {size_bytes} byte(s): only {left} byte(s) available"
            )
        return self._take(max(size_bytes, 0))

    def _take(self, size_bytes: int) -> bytes:
        end = self._at + size_bytes
        if end > len(self._data):
            raise ValueError("null")  # Kafka's error has no words.
        taken = self._data[self._at : end]
        self._at = end
        return taken
