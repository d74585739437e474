"""Records of a text: lines, JSON lines of the envelope, CSV; what is refused, and where."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog.bindings.text_records import (
    CsvHeader,
    checksum,
    csv_row,
    json_text,
    parse_records,
)
from eoslog.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError

NOW_MS = 1_700_000_000_000


def parse(form: str, text: bytes, header: Any = None, **others: Any) -> Any:
    given_ = {
        "line": 1,
        "crc": 0,
        "timestamp_ms": NOW_MS,
        "is_whole": True,
        "header": header,
        "batch_bytes_max": 1 << 20,
        "timestamp_ms_min": 0,
        "timestamp_ms_max": 1 << 62,
        **others,
    }
    return parse_records(form, bytearray(text), 0, len(text), **given_)  # type: ignore[arg-type]


def fault_of(form: str, text: bytes, header: Any = None, **others: Any) -> tuple[int, str]:
    """The line and the words of what is refused; the records before it are there."""
    parsed = parse(form, text, header, **others)
    assert parsed.record_count == parsed.line - 1
    assert parsed.crc == checksum(text[: parsed.next])
    return parsed.line, str(parsed.fault)


SOUND = b'{"value": "x"}\n'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"x", "byte 1: it is not JSON"),
        (b'{"value": "x"', "byte 14: it is not JSON"),
        (b'{"value": "x"} x', "byte 16: it is not JSON"),
        (b'{"value": "x",}', "it is not JSON"),
        (b"{\"value\": 'x'}", "must be a string, null or"),
        (b'{"value": 1}', "byte 11: it must be a string, null or"),
        (b'{"value": nul}', "it is not JSON"),
        (b'{"value": "\x01"}', "it is not JSON"),
        (b'{"value": "\xff"}', "byte 12: it is not UTF-8"),
        (b'{"value": "\xed\xa0\x80"}', "it is not UTF-8"),
        (b'{"value": "\\ud800"}', "half of a surrogate pair"),
        (b'{"value": "\\udc00\\ud800"}', "half of a surrogate pair"),
        (b'{"value": "\\u00g0"}', "it is not JSON"),
        (b'{"value": "\\x"}', "it is not JSON"),
        (b'{"value": {"base64": "QQ="}}', "it is not base64"),
        (b'{"value": {"base64": "Q!=="}}', "it is not base64"),
        (b'{"value": {"base64": null}}', "it is not base64"),
        (b'{"value": {"other": "QQ=="}}', "must be a string, null or"),
        (b'{"value": "x", "value": "y"}', "a field that is there twice"),
        (b'{"value": "x", "id": 1}', "a field that the envelope does not have"),
        (b'{"key": "x"}', "it has no field `value`"),
        (b"{}", "it has no field `value`"),
        (b'{"value": "x", "timestamp_ms": 1.5}', "it is not an integer"),
        (b'{"value": "x", "timestamp_ms": 1e5}', "it is not an integer"),
        (b'{"value": "x", "timestamp_ms": "1"}', "it is not an integer"),
        (b'{"value": "x", "timestamp_ms": 9223372036854775808}', "it is not an integer"),
        (b'{"value": "x", "timestamp_ms": 01}', "it is not an integer"),
        (b'{"value": "x", "headers": {}}', "headers must be a list of pairs"),
        (b'{"value": "x", "headers": [["a"]]}', "headers must be a list of pairs"),
        (b'{"value": "x", "headers": [[null, "a"]]}', "headers must be a list of pairs"),
        (b'{"value": "x", "headers": [["a", "b"]}', "headers must be a list of pairs"),
    ],
)
def test_a_line_that_is_no_envelope_is_refused_with_its_place(line, words):
    number, said = fault_of("jsonl", SOUND + line + b"\n" + SOUND)
    assert number == 2
    assert words in said


def test_the_limits_of_the_topic_are_those_of_a_record():
    long = b'{"value": "%b"}\n' % (b"x" * 100)
    error = parse("jsonl", SOUND + long, batch_bytes_max=150).fault
    assert isinstance(error, RecordTooLargeError)
    assert str(error) == "it makes a batch of 170 bytes; limit 150"
    assert parse("jsonl", SOUND + long, batch_bytes_max=170).fault is None
    error = parse("jsonl", b'{"value": "x", "timestamp_ms": 5}', timestamp_ms_min=6).fault
    assert isinstance(error, InvalidTimestampError)
    assert parse("jsonl", b'{"value": "x", "timestamp_ms": -1}').fault is None


def test_blank_lines_of_json_are_no_records_and_those_of_a_text_are_empty():
    assert parse("jsonl", b"\n \r\n" + SOUND + b"\t").record_count == 1
    assert parse("lines", b"\n \r\na").record_count == 3


def test_an_escape_is_its_character():
    text = rb'{"value": "\u0041\u00e9\u20ac\ud83d\ude00\"\\\/\b\f\n\r\t"}'
    parsed = parse("jsonl", text)
    assert parsed.fault is None
    expected = 'Aé€😀"\\/\b\f\n\r\t'.encode()
    # As by a batch of exactly this size.
    size = 61 + 7 + len(expected)
    assert parse("jsonl", text, batch_bytes_max=size - 1).fault is not None
    assert parse("jsonl", text, batch_bytes_max=size).fault is None


@given(st.binary(max_size=70) | st.text(max_size=70).map(lambda text: text.encode()))
def test_bytes_are_written_as_python_writes_them(data):
    try:
        expected: Any = data.decode()
    except UnicodeDecodeError:
        expected = {"base64": base64.b64encode(data).decode()}
    assert json_text(data) == json.dumps(expected, ensure_ascii=False).encode()


CELLS = st.none() | st.text(st.characters(codec="utf-8") | st.sampled_from('",\r\n'), max_size=12)


def written(rows: list[list[str | None]], end: str) -> bytes:
    """The rows as CSV: quotes for every text, none for null."""
    lines = [
        ",".join("" if one is None else '"{}"'.format(one.replace('"', '""')) for one in row)
        for row in rows
    ]
    return "".join(line + end for line in lines).encode()


@given(st.lists(CELLS, min_size=2, max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_a_row_is_its_cells(cells, end):
    text = bytearray(written([cells], end) + b"rest\n")
    found = csv_row(text, 0, False)
    assert found is not None
    assert found[0] == cells
    assert text[found[1] :] == b"rest\n"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b'a,b"c', "byte 4: a quote that does not end the cell"),
        (b'a,"b"c', "byte 5: a quote that does not end the cell"),
        (b"a,b\rc", "byte 4: a carriage return"),
        (b"a,\xff", "byte 3: it is not UTF-8"),
        (b'a,"\xc0\x80"', "it is not UTF-8"),
    ],
)
def test_a_row_that_is_no_csv_is_refused(row, words):
    with pytest.raises(InvalidRecordError, match=words):
        csv_row(bytearray(row), 0, True)
    if row.count(b'"') % 2 == 0:
        assert words in fault_of("csv", b"x,y\n" + row + b"\n", CsvHeader(("value", "b")))[1]


def test_a_row_must_have_the_cells_of_its_header():
    header = CsvHeader(("value", "other"))
    for row, count in ((b"a\n", 1), (b"a,b,c\n", 3)):
        assert fault_of("csv", b"a,b\n" + row, header) == (
            *(2, f"the row has {count} cells, and the header 2"),
        )


def test_a_row_without_its_end_is_left():
    header = CsvHeader(("value",))
    for text in (b"a\nb", b'a\n"b\n'):
        parsed = parse("csv", text, header, is_whole=False)
        assert (parsed.record_count, parsed.next, parsed.fault) == (1, 2, None)
    assert parse("csv", b"a\nb", header).record_count == 2
    assert "a quote that does not end" in fault_of("csv", b'a\n"b\n', header)[1]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("-1", -1),
        ("1769860800123", 1_769_860_800_123),
        ("2026-01-31T12:00:00.123Z", 1_769_860_800_123),
        ("2026-01-31 12:00:00.123999", 1_769_860_800_123),
        ("2026-01-31T13:30+01:30", 1_769_860_800_000),
        ("2026-01-31T09:00:00-0300", 1_769_860_800_000),
        ("2024-02-29T00:00", 1_709_164_800_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("2026-02-29T00:00", None),
        ("2026-01-31", None),
        ("2026-01-31T24:00", None),
        ("2026-01-31T12:00:00.", None),
        ("2026-01-31T12:00:00+1", None),
        ("1969-12-31T23:59", None),
        ("1.5", None),
        ("x", None),
    ],
)
def test_a_timestamp_is_milliseconds_or_a_time(text, milliseconds):
    parsed = parse("csv", f"x,{text}\n".encode(), CsvHeader(("value", "timestamp")))
    if milliseconds is None:
        assert "a timestamp must be" in str(parsed.fault)
    else:
        assert parsed.fault is None
        assert parsed.columns.timestamps.tolist() == [milliseconds]


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="bytes"):
        parse("lines", b"")
    with pytest.raises(ValueError, match="form 'csv'"):
        parse("csv", b"a")
