"""Lines of JSON: which are, what stays of them, and what keys are made of."""

import pytest

from eoslog.spark.commands.json_lines import JsonLines, fault_in_json

pa = pytest.importorskip("pyarrow")


def records_of(*lines, key="", separator=":"):
    """Key and value of each record that a task makes of the lines."""
    batch = pa.record_batch([pa.array(lines, pa.binary())], ["value"])
    found = JsonLines(tuple(filter(None, key.split(","))), separator)(iter([batch]))
    return [tuple(row.values()) for one in found for row in one.to_pylist()]


@pytest.mark.parametrize(
    "line",
    [
        *('{"a":1.50,  "a":2}', "[1, 2]", '"x"', "null", "1e5", '{"a":"\\ud800"}', ' {"a":1}\t'),
        *("1" + "0" * 5000, '{"a":0.1234567890123456789012345}', '{"ü":"\U0001f600"}', "-0.0"),
        "[" * 500 + "]" * 500,
    ],
)
def test_a_line_of_json_stays_as_it_is(line):
    assert records_of(line.encode()) == [(None, line)]


@pytest.mark.parametrize("line", [b"", b"  ", b"\t", b" \r"])
def test_a_blank_line_is_left_out(line):
    assert records_of(b"1", line, b"2") == [(None, "1"), (None, "2")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a":1} x', "Extra data at character 9"),
        (b'{"a":1}{"b":2}', "Extra data at character 8"),
        (b"1,2", "Extra data at character 2"),
        (b'{"a":', "Expecting value"),
        (b'{"a":007}', "Expecting"),
        (b"{'a':1}", "double quotes"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b'{"a":1_000}', "Expecting"),
        (b'{"a":"M\xfcller"}', "byte 8, 0xfc, is not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "is not UTF-8"),
        (b'{"a":"x\x00y"}', "Invalid control character"),
        (b'{"a":"\x01"}', "Invalid control character"),
        (b'\xef\xbb\xbf{"a":1}', "Expecting value"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_what_is_not_one_json_text_is_refused(tmp_path, line, words):
    with pytest.raises(ValueError, match="a line is not JSON") as caught:
        records_of(b"1", line)
    assert words in str(caught.value)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\r\n\n' + line + b"\n")
    fault = fault_in_json(path, "a.jsonl", (), ":")
    assert fault.startswith("a.jsonl, line 3: it is not JSON: ")
    assert words in fault


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("s", "x"),
        ("f", "1.10"),
        ("e", "1e5"),
        ("big", "12345678901234567890123"),
        ("t", "true"),
        ("null", None),
        ("gone", None),
        ("gone,s", ":x"),
        ("empty", ""),
        ("o", '{"b":[1.0,"é",null,false]}'),
        ("u", "é"),
        ("twice", "2"),
    ],
)
def test_a_key_has_the_texts_of_the_line(key, expected):
    line = (
        '{"s":"x","f":1.10,"e":1e5,"big":12345678901234567890123,"t":true,"null":null,"empty":"",'
        '"o":{"b": [1.0, "\\u00e9", null, false]},"u":"\\u00e9","twice":1,"twice":2}'
    )
    assert records_of(line.encode(), key=key) == [(expected, line)]


@pytest.mark.parametrize("line", ["[1]", '"a"', "1", "null"])
def test_what_is_no_object_has_no_key(line):
    assert records_of(line.encode(), key="a") == [(None, line)]


def test_a_key_that_utf_8_cannot_express_is_refused():
    with pytest.raises(ValueError, match="half of a surrogate pair in its key"):
        records_of(b'{"a":"\\ud800"}', key="a")


def test_sound_lines_have_no_fault(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n\n[]')
    assert fault_in_json(path, "a.jsonl", ("a",), ":") is None
