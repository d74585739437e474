"""Arrow arrays as a broken library would hand them over: each is a named error, never a crash."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from eoslog.bindings.column_set import open_columns
from eoslog.bindings.column_stream import open_column_stream
from eoslog.errors import ArrowStreamError

pa = pytest.importorskip("pyarrow")


class Schema(ctypes.Structure):
    pass


class Array(ctypes.Structure):
    pass


class Stream(ctypes.Structure):
    pass


P = ctypes.POINTER
Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", P(P(Schema))),
    ("dictionary", P(Schema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", P(ctypes.c_void_p)),
    ("children", P(P(Array))),
    ("dictionary", P(Array)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
GET_SCHEMA = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, P(Schema))
GET_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, P(Array))
GET_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Stream._fields_ = [
    ("get_schema", GET_SCHEMA),
    ("get_next", GET_NEXT),
    ("get_last_error", GET_ERROR),
    ("release", RELEASE),
    ("private_data", ctypes.c_void_p),
]
api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Changed:
    """An array of pyarrow, with something about its structures changed; pyarrow releases it."""

    def __init__(self, array: Any, change: Callable[[Schema, Array], object]) -> None:
        self._array = array
        self._change = change
        self._kept: list[object] = []

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        capsules = self._array.__arrow_c_array__()
        names = (b"arrow_schema", b"arrow_array")
        at = [api.PyCapsule_GetPointer(*one) for one in zip(capsules, names, strict=True)]
        schema, array = Schema.from_address(at[0]), Array.from_address(at[1])
        self._kept.append(self._change(schema, array))
        return capsules


def setting(**fields: Any) -> Callable[[Schema, Array], None]:
    def change(schema: Schema, array: Array) -> None:
        for name, value in fields.items():
            setattr(schema if name == "format" else array, name, value)

    return change


def without_buffer(number: int) -> Callable[[Schema, Array], None]:
    def change(schema: Schema, array: Array) -> None:
        array.buffers[number] = None

    return change


def with_bytes(number: int, data: bytes, shift: int = 0) -> Callable[[Schema, Array], object]:
    """A buffer with other bytes, aligned to 8 and then shifted."""

    def change(schema: Schema, array: Array) -> object:
        held = (ctypes.c_uint64 * (len(data) // 8 + 3))()
        ctypes.memmove(ctypes.addressof(held) + shift, data, len(data))
        array.buffers[number] = ctypes.addressof(held) + shift
        return held

    return change


def numbers(*values: int, size: int = 4) -> bytes:
    return b"".join(value.to_bytes(size, "little", signed=True) for value in values)


PLAIN = pa.array([b"aa", b"bb", None])
LARGE = pa.array([b"aa", b"bb", None], pa.large_binary())
VIEWS = pa.array([b"short", b"longer than twelve", None], pa.binary_view())
FIXED = pa.array([b"aa", b"bb", None], pa.binary(2))
DICTIONARY = PLAIN.dictionary_encode()
STRUCT = pa.array([{"value": b"a", "key": b"k"}] * 3)
HEADERS = pa.array(
    [[{"key": "a", "value": b"b"}]] * 3,
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
)


def view(length: int, number: int, offset: int) -> bytes:
    return numbers(length) + b"long" + numbers(number, offset)


CASES: dict[str, tuple[Any, Callable[[Schema, Array], object], str]] = {
    "negative length": (PLAIN, setting(length=-1), "of its rows"),
    "negative offset": (PLAIN, setting(offset=-1), "of its rows"),
    "offset beyond 64 bits": (PLAIN, setting(offset=2**63 - 2), "of its rows"),
    "too long": (PLAIN, setting(length=2**40), "at most 1073741824 items"),
    "null count below": (PLAIN, setting(null_count=-2), "null count -2"),
    "null count above": (PLAIN, setting(null_count=4), "null count 4"),
    "nulls without a bitmap": (PLAIN, without_buffer(0), "1 nulls without a bitmap"),
    "no buffers": (PLAIN, setting(n_buffers=1, null_count=0), "its buffer 1 is missing"),
    "no list of buffers": (PLAIN, setting(buffers=None), "with its buffers"),
    "negative buffers": (PLAIN, setting(n_buffers=-1), "with its buffers"),
    "no offsets": (PLAIN, without_buffer(1), "its buffer 1 is missing"),
    "no data": (PLAIN, without_buffer(2), "its buffer 2 is missing"),
    "falling": (PLAIN, with_bytes(1, numbers(0, 4, 2, 2)), "row 1 has less than no bytes"),
    "falling, large": (LARGE, with_bytes(1, numbers(0, 4, 2, 2, size=8)), "row 1 has less"),
    "below the data": (PLAIN, with_bytes(1, numbers(-2, 0, 2, 2)), "row 0 has less than no bytes"),
    "not aligned": (PLAIN, with_bytes(1, numbers(0, 2, 4, 4), 1), "buffer 1 is not aligned to 4"),
    "not aligned, large": (LARGE, with_bytes(1, numbers(0, 2, 4, 4, size=8), 4), "aligned to 8"),
    "no views": (VIEWS, without_buffer(1), "its buffer 1 is missing"),
    "no data of views": (VIEWS, without_buffer(2), "that of row 1 leaves its buffer"),
    "no sizes of views": (VIEWS, without_buffer(3), "its buffer 3 is missing"),
    "no buffers of views": (VIEWS, setting(n_buffers=2), "that of row 1 leaves its buffer"),
    "negative view": (VIEWS, with_bytes(1, view(-5, 0, 0) * 3), "that of row 0 leaves"),
    "view of no buffer": (VIEWS, with_bytes(1, view(18, 1, 0) * 3), "that of row 0 leaves"),
    "view of a negative one": (VIEWS, with_bytes(1, view(18, -1, 0) * 3), "that of row 0 leaves"),
    "view before its buffer": (VIEWS, with_bytes(1, view(18, 0, -1) * 3), "that of row 0 leaves"),
    "view behind its buffer": (VIEWS, with_bytes(1, view(18, 0, 2) * 3), "that of row 0 leaves"),
    "view of all bytes": (VIEWS, with_bytes(1, view(2**31 - 1, 0, 2**31 - 1) * 3), "row 0 leaves"),
    "no cells": (FIXED, without_buffer(1), "its buffer 1 is missing"),
    "too wide": (FIXED, setting(format=b"w:2147483647", offset=2**60), "of its rows"),
    "index above": (DICTIONARY, with_bytes(1, numbers(0, 2, 0)), "index of row 1 is none"),
    "index below": (DICTIONARY, with_bytes(1, numbers(0, 1, -1)), None),
    "negative index": (DICTIONARY, with_bytes(1, numbers(0, -1, 0)), "index of row 1 is none"),
    "no dictionary": (DICTIONARY, setting(dictionary=None), "with its dictionary"),
    "no indices": (DICTIONARY, without_buffer(1), "its buffer 1 is missing"),
    "fewer fields": (STRUCT, setting(n_children=1), "1 fields of 2"),
    "longer than its fields": (STRUCT, setting(length=4), "of its rows"),
    "further than its fields": (STRUCT, setting(offset=1), "of its rows"),
    "null struct": (
        STRUCT,
        lambda schema, array: (
            setting(null_count=-1)(schema, array),
            with_bytes(0, b"\5")(schema, array),
        ),
        "no null rows, got one in row 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_array_is_refused(name):
    array, change, text = CASES[name]
    if text is None:  # The row is null: what its index is does not matter.
        assert len(open_columns(Changed(array, change), None, None, None, 1)) == 3
        return
    with pytest.raises(ValueError, match=text):
        open_columns(Changed(array, change), None, None, None, 1)


@pytest.mark.parametrize(
    "form", [b"", b"w:", b"w:-1", b"w:1.5", b"w:99999999999", b"+l", b"b", b"i", b"\xff", b"+r"]
)
def test_a_format_of_no_bytes_is_refused(form):
    with pytest.raises(TypeError, match="values must be an Arrow binary"):
        open_columns(Changed(PLAIN, setting(format=form)), None, None, None, 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without_buffer(1), "lists with their offsets"),
        (setting(n_buffers=1, null_count=0), "lists with their offsets"),
        (setting(n_children=0), "lists with their offsets"),
        (with_bytes(1, numbers(0, 2, 1, 3)), "row 1 has less than no headers"),
        (with_bytes(1, numbers(0, 1, 2, 4)), "of its rows"),
        (with_bytes(1, numbers(-1, 1, 2, 3)), "less than no headers"),
        (with_bytes(1, numbers(0, 1, 2, 3), 2), "not aligned"),
    ],
)
def test_malformed_headers_are_refused(change, text):
    with pytest.raises(ValueError, match=text):
        open_columns([b"v"] * 3, None, None, Changed(HEADERS, change), 1)


@pytest.mark.parametrize(
    ("array", "change", "text"),
    [
        (pa.array([1, 2, 3]), without_buffer(1), "its buffer 1 is missing"),
        (pa.array([1, 2, 3]), with_bytes(1, bytes(24), 4), "not aligned to 8"),
        (pa.array([1, 2, 3]), setting(null_count=3), "nulls without a bitmap"),
        (pa.array([1, 2, 3], pa.date32()), with_bytes(1, bytes(12), 2), "not aligned to 4"),
    ],
)
def test_malformed_times_are_refused(array, change, text):
    with pytest.raises(ValueError, match=text):
        open_columns([b"v"] * 3, None, Changed(array, change), None, 1)


class Twice:
    """The same capsules at each call: the second one finds them released."""

    def __init__(self, array: Any) -> None:
        self._capsules = array.__arrow_c_array__()

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._capsules


def test_a_released_array_is_refused():
    given = Twice(PLAIN)
    assert len(open_columns(given, None, None, None, 1)) == 3
    with pytest.raises(ValueError, match="that no other consumer has released"):
        open_columns(given, None, None, None, 1)


@pytest.mark.parametrize("answer", [None, 5, (), (1, 2), ("a", "b", "c")])
def test_what_is_no_capsule_is_refused(answer):
    class Wrong:
        def __arrow_c_array__(self, requested_schema: object = None) -> object:
            return answer

    class WrongStream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return answer

    for wrong in (Wrong(), WrongStream()):
        with pytest.raises((TypeError, ValueError)):
            open_columns(wrong, None, None, None, 1)
    with pytest.raises((TypeError, ValueError)):
        open_column_stream(WrongStream(), lambda: 1)


class MadeStream:
    """A stream of C functions, that fails where it is asked to."""

    def __init__(self, fails_at: str, text: bytes | None) -> None:
        self.calls: list[str] = []
        self._text = None if text is None else ctypes.create_string_buffer(text)
        self._fails_at = fails_at
        self.stream = Stream(
            GET_SCHEMA(self._get_schema),
            GET_NEXT(self._get_next),
            GET_ERROR(self._get_error),
            RELEASE(self._release),
            None,
        )
        self._kept: list[Any] = []

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return api.PyCapsule_New(ctypes.addressof(self.stream), b"arrow_array_stream", None)

    def _get_schema(self, stream: int, schema: Any) -> int:
        self.calls.append("schema")
        if self._fails_at == "schema":
            return 22
        self._move(0, schema, Schema)
        return 0

    def _get_next(self, stream: int, array: Any) -> int:
        self.calls.append("next")
        if self._fails_at == "next" and self.calls.count("next") == 2:
            return 5
        self._move(1, array, Array)
        return 0

    def _move(self, which: int, target: Any, kind: Any) -> None:
        """Hand one of pyarrow's structures over."""
        capsules = PLAIN.__arrow_c_array__()
        self._kept.append(capsules)
        name = (b"arrow_schema", b"arrow_array")[which]
        source = kind.from_address(api.PyCapsule_GetPointer(capsules[which], name))
        ctypes.memmove(target, ctypes.addressof(source), ctypes.sizeof(kind))
        source.release = None

    def _get_error(self, stream: int) -> int | None:
        self.calls.append("error")
        return None if self._text is None else ctypes.addressof(self._text)

    def _release(self, stream: int) -> None:
        self.calls.append("release")
        self.stream.release = RELEASE()


@pytest.mark.parametrize(
    ("text", "shown"),
    [(b"no such query", "no such query"), (None, "Input/output error"), (b"\xff", "\ufffd")],
)
def test_an_error_of_a_stream_has_its_text(text, shown):
    made = MadeStream("next", text)
    with open_column_stream(made, lambda: 1) as stream:
        assert len(stream.next_columns()) == 3
        with pytest.raises(ArrowStreamError, match=f"failed after 3 records: {shown}"):
            stream.next_columns()
        assert stream.next_columns() is None
    assert made.calls == ["schema", "next", "next", "error", "release"]


def test_a_stream_without_a_type_is_released():
    made = MadeStream("schema", b"no such table")
    with pytest.raises(ArrowStreamError, match="after 0 records: no such table"):
        open_column_stream(made, lambda: 1)
    assert made.calls == ["schema", "error", "release"]


def test_a_stream_is_released_with_its_last_reference():
    made = MadeStream("", None)
    stream = open_column_stream(made, lambda: 1)
    stream.next_columns()
    del stream
    assert made.calls == ["schema", "next", "release"]
    with pytest.raises(ValueError, match="that no other consumer has released"):
        open_column_stream(made, lambda: 1)
