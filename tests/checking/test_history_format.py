"""What a history may hold: each mistake is named with its file, line and field."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from eoslog.checking import HistoryError, Report, check
from eoslog.checking.history import FIELDS

TIMES = {"begin_ns": 10, "end_ns": 20, "outcome": "ok"}
SEND = {"client": "a", "kind": "send", **TIMES, "topic": "t", "partition": 0, "value": "v"}
SEVERAL = {name: one for name, one in SEND.items() if name != "value"} | {"values": ["a", "b"]}
POLL = {"client": "b", "kind": "poll", **TIMES, "records": {"t-0": [[0, "v"]]}}
OFFSETS = {"client": "b", "kind": "offsets", **TIMES, "group": "g", "offsets": {"t-0": 3}}


def checked(folder: Path, *lines: dict[str, Any] | str, **options: Any) -> Report:
    path = folder / "h.jsonl"
    path.write_text(
        "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    )
    return check([path], **options)


WRONG: list[tuple[str, dict[str, Any] | str]] = [
    ("", "{"),
    ("", "[]"),
    ("", '{"a":1} {}'),
    ("", "\u00e9"),
    ("", json.dumps(SEND).replace('"begin_ns": 10', '"begin_ns": 1' + "0" * 10_000)),
    ("kind", SEND | {"kind": "write"}),
    ("kind", SEND | {"kind": None}),
    ("kind", SEND | {"kind": []}),
    ("client", SEND | {"client": ""}),
    ("client", SEND | {"client": 7}),
    ("outcome", SEND | {"outcome": "done"}),
    ("outcome", SEND | {"outcome": None}),
    ("begin_ns", SEND | {"begin_ns": -1}),
    ("begin_ns", SEND | {"begin_ns": 1.5}),
    ("begin_ns", SEND | {"begin_ns": True}),
    ("end_ns", SEND | {"end_ns": 9}),
    ("end_ns", SEND | {"end_ns": None}),
    ("end_ns", SEND | {"end_ns": 1 << 62}),
    ("ofset", SEND | {"ofset": 3}),
    ("records", SEND | {"records": {}}),
    ("topic", SEND | {"topic": ""}),
    ("partition", SEND | {"partition": -1}),
    ("partition", SEND | {"partition": "0"}),
    ("offset", SEND | {"offset": 1 << 44}),
    ("offset", SEVERAL | {"offset": (1 << 44) - 1}),
    ("offset", SEND | {"offset": 0, "outcome": "unknown"}),
    ("offset", SEND | {"offset": 0, "partition": None}),
    ("value", SEND | {"value": 1.5}),
    ("value", SEND | {"value": "\ud800"}),
    ("values", SEVERAL | {"values": ["a", "b\udfff"]}),
    ("client", SEND | {"client": "a\udc80"}),
    ("topic", SEND | {"topic": "\udcff"}),
    ("records", POLL | {"records": {"t\udcff-0": []}}),
    ("value", SEND | {"value": None}),
    ("value", SEND | {"values": ["v"]}),
    ("value", {name: one for name, one in SEND.items() if name != "value"}),
    ("value", SEND | {"value": None, "values": None}),
    ("value", SEVERAL | {"value": 1.5, "values": None}),
    ("ofset", SEND | {"ofset": None}),
    ("isolation", POLL | {"isolation": ""}),
    ("values", {name: one for name, one in SEND.items() if name != "value"} | {"values": []}),
    ("values", {name: one for name, one in SEND.items() if name != "value"} | {"values": [[]]}),
    ("transaction", SEND | {"transaction": 4}),
    ("transactional_id", SEND | {"transactional_id": ""}),
    ("producer_epoch", SEND | {"producer_id": 4}),
    ("producer_id", SEND | {"producer_epoch": 4}),
    ("producer_id", SEND | {"producer_id": -4, "producer_epoch": 0}),
    ("op", SEND | {"op": "first"}),
    ("isolation", POLL | {"isolation": "dirty"}),
    ("records", POLL | {"records": []}),
    ("records", POLL | {"records": {"t": []}}),
    ("records", POLL | {"records": {"t-00": []}}),
    ("records", POLL | {"records": {"t-1" + "0" * 10_000: []}}),
    ("records", POLL | {"records": {"t-0": {}}}),
    ("records", POLL | {"records": {"t-0": [[0]]}}),
    ("records", POLL | {"records": {"t-0": [[-1, "v"]]}}),
    ("records", POLL | {"records": {"t-0": [[0, None]]}}),
    ("next", POLL | {"next": {"t-0": None}}),
    ("positions", {"client": "b", "kind": "seek", **TIMES}),
    ("transactional_id", {"client": "b", "kind": "init", **TIMES}),
    ("transaction", {"client": "b", "kind": "commit", **TIMES}),
    ("group", OFFSETS | {"group": None}),
    ("offsets", OFFSETS | {"offsets": {"t-0": None}}),
    ("offsets", OFFSETS | {"kind": "committed", "offsets": {"t-0": -3}}),
    ("offsets", {"client": "b", "kind": "ends", **TIMES, "offsets": [3]}),
]


@pytest.mark.parametrize(("field", "line"), WRONG, ids=lambda one: str(one)[:60])
def test_a_wrong_line_is_named(field: str, line: dict[str, Any] | str, tmp_path: Path) -> None:
    with pytest.raises(HistoryError) as caught:
        checked(tmp_path, POLL, "  ", line)
    error = caught.value
    assert (error.path, error.line_number, error.field) == (str(tmp_path / "h.jsonl"), 3, field)
    assert error.reason in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert isinstance(error, ValueError)


REPEATED = [
    ("t-0", POLL, '"t-0": [[0, "v"]]'),
    ("t-0", POLL | {"next": {"t-0": 3}}, '"t-0": 3'),
    ("t-0", OFFSETS, '"t-0": 3'),
    ("t-0", OFFSETS | {"kind": "ends"}, '"t-0": 3'),
    ("outcome", SEND, '"outcome": "ok"'),
    ("value", SEND, '"value": "v"'),
    ("note", SEND | {"note": None}, '"note": null'),
    ("code", SEND | {"error": {"code": 7}}, '"code": 7'),
]


@pytest.mark.parametrize(("name", "line", "pair"), REPEATED)
@pytest.mark.parametrize("between", [", ", " ,\t"])
def test_a_name_that_is_there_twice_is_named(
    name: str, line: dict[str, Any], pair: str, between: str, tmp_path: Path
) -> None:
    """Whatever the two say, and however they are written."""
    text = json.dumps(line)
    assert text.count(pair) == 1
    again = pair.replace('":', '" \t:').replace(f'"{name[0]}', f'"\\u{ord(name[0]):04x}')
    for second in (pair, again):
        with pytest.raises(HistoryError) as caught:
            checked(tmp_path, POLL, text.replace(pair, f"{pair}{between}{second}"))
        assert (caught.value.line_number, caught.value.field) == (2, name)
        assert "twice" in str(caught.value)


@pytest.mark.parametrize("where", ["t-0", "t-1"])
def test_the_last_place_of_a_partition_is_no_other_partitions(where: str, tmp_path: Path) -> None:
    last = (1 << 44) - 1
    both = {where: [[last - 1, "v"], [last, "w"]]}
    others = {"t-0": [[0, "x"]], "t-1": [[0, "y"]]}
    seek = {"client": "c", "kind": "seek", **TIMES, "positions": {where: last - 1}}
    skips = {"client": "c", "records": {where: [[last, "w"]]}}
    lines = [POLL | {"records": others, "client": "o"}, POLL | {"records": both}, seek]
    assert checked(tmp_path, *lines).clean
    assert checked(tmp_path, *lines, POLL | skips).count("poll skip") == 1


def test_a_file_that_cannot_be_read_is_named() -> None:
    path = "/proc/self/mem"
    with pytest.raises(OSError, match=path) as caught:
        check([path])
    assert caught.value.filename == path


def test_an_operation_keeps_its_kind(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="another kind") as caught:
        checked(tmp_path, POLL | {"op": 1}, OFFSETS | {"op": 1})
    assert caught.value.field == "op"


def test_the_last_line_of_an_operation_counts(tmp_path: Path) -> None:
    begun = SEND | {"op": 0, "outcome": "unknown", "end_ns": None}
    report = checked(tmp_path, begun, POLL, SEND | {"op": 0, "outcome": "fail"})
    assert (report.counts["operations"], report.count("aborted read")) == (2, 1)
    # Another client has numbers of its own.
    report = checked(tmp_path, SEND | {"op": 0, "client": "c"}, POLL, SEND | {"op": 0, "value": 1})
    assert report.counts["operations"] == 3


def test_what_a_killed_process_left_of_a_line_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    begun = json.dumps(POLL | {"note": "\u00e9"}, ensure_ascii=False).encode()
    for before, operations in ((b"", 0), (json.dumps(SEND).encode() + b"\n", 1)):
        for cut in range(len(begun)):
            path.write_bytes(before + begun[:cut])
            assert check([path]).counts["operations"] == operations, cut


NO_BEGINNINGS = [
    b"hello",
    b"hello\r",
    b"\0" * 3_000_000,
    b"\x89PNG\r",
    b"\x1f\x8b\x08",
    b"[{",
    b'"client',
    b"{client",
    b"{\\rtf1",
    b'{"client": "a\0\0',
    b'{"note": {"a": 1, "a": 2}',
    b'{"begin_ns": 1' + b"0" * 10_000,
]


@pytest.mark.parametrize("end", NO_BEGINNINGS, ids=lambda one: repr(one)[:30])
def test_what_no_line_begins_with_is_no_line_that_breaks_off(end: bytes, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    for before, line_number in ((b"", 1), (json.dumps(SEND).encode() + b"\n", 2)):
        path.write_bytes(before + end)
        with pytest.raises(HistoryError) as caught:
            check([path])
        assert (caught.value.path, caught.value.line_number) == (str(path), line_number)


def test_several_files_are_one_history(tmp_path: Path) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_text(json.dumps(SEND | {"outcome": "fail"}) + "\n")
    second.write_text(json.dumps(POLL) + "\n")
    report = check([first, second])
    (anomaly,) = report.anomalies
    assert [one.file for one in anomaly.operations] == [str(first), str(second)]
    assert [one.line for one in anomaly.operations] == [1, 1]


def test_values_are_of_their_topic_and_type(tmp_path: Path) -> None:
    """The same value in another topic, or as a number, is another record."""
    others = {"t-0": [[0, "1"], [1, 1]], "u-0": [[0, "1"]]}
    assert checked(tmp_path, POLL | {"records": others}).count("duplicate") == 0
    assert (
        checked(tmp_path, POLL | {"records": {"t-0": [[0, "1"], [1, "1"]]}}).count("duplicate") == 1
    )


ALONE: list[dict[str, Any]] = [
    SEND,
    SEND | {"offset": 3, "transaction": "x"},
    SEND | {"partition": None},
    POLL,
    POLL | {"records": {}, "next": {"t-0": 5}},
    POLL | {"outcome": "fail"},
    OFFSETS,
    OFFSETS | {"transaction": "x"},
    OFFSETS | {"kind": "committed", "offsets": {"t-0": None}},
    {"client": "b", "kind": "seek", **TIMES, "positions": {}},
    {"client": "b", "kind": "seek", **TIMES, "positions": {"t-0": None}},
    {"client": "b", "kind": "init", **TIMES, "producer_id": 1, "producer_epoch": 0},
    {"client": "b", "kind": "init", **TIMES, "transactional_id": "i"},
    {"client": "b", "kind": "commit", **TIMES, "transaction": "x"},
    {"client": "b", "kind": "abort", **TIMES, "transaction": "y"},
    {"client": "b", "kind": "ends", **TIMES, "offsets": {"t-0": 3}},
]


@pytest.mark.parametrize("line", ALONE, ids=lambda one: str(one["kind"]))
def test_an_operation_alone_is_clean(line: dict[str, Any], tmp_path: Path) -> None:
    report = checked(tmp_path, line)
    assert (report.clean, report.counts["operations"]) == (True, 1)
    begun = {name: one for name, one in line.items() if name not in ("offset", "end_ns")}
    assert checked(tmp_path, begun | {"outcome": "unknown"}).clean


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("line", ALONE, ids=lambda one: str(one["kind"]))
@pytest.mark.parametrize("name", sorted(set().union(*FIELDS.values())))
def test_a_field_with_null_is_as_good_as_none(
    name: str, line: dict[str, Any], tmp_path: Path
) -> None:
    if name not in line:
        assert checked(tmp_path, line | {name: None}).counts == checked(tmp_path, line).counts


def test_null_beside_values_or_as_isolation_changes_nothing(tmp_path: Path) -> None:
    both = {"t-0": [[0, "a"], [1, "b"]]}
    sent = SEVERAL | {"value": None, "outcome": "fail"}
    report = checked(tmp_path, sent, POLL | {"records": both, "isolation": None})
    assert (report.counts["records_sent"], report.count("aborted read")) == (2, 2)
    end = {"client": "b", "kind": "ends", **TIMES, "offsets": {"t-0": 3}, "isolation": None}
    back = end | {"offsets": {"t-0": 2}, "begin_ns": 30, "end_ns": 40}
    assert checked(tmp_path, end, back).count("lost write") == 1


def test_an_empty_history_is_clean(tmp_path: Path) -> None:
    assert checked(tmp_path).clean


@pytest.mark.parametrize("name", ["visible_within_s", "clock_error_ms", "examples_max"])
def test_limits_are_not_below_0(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=name):
        checked(tmp_path, **{name: -1})


def test_records_of_nobody_are_counted_and_no_anomaly(tmp_path: Path) -> None:
    report = checked(tmp_path, POLL)
    assert report.clean
    assert report.counts["records_of_nobody"] == 1
    assert "no send of the history wrote" in list(report.lines())[-1]


def test_texts_may_hold_anything_that_is_unicode(tmp_path: Path) -> None:
    odd = {"error": "no such file: '\udcff'", "note": ["\ud800"]}
    values = [{"value": one} for one in ("\U0001f600", "\ud7ff", "\\ud800")]
    assert checked(tmp_path, *(SEND | one | odd for one in values)).clean
    as_it_is = [json.dumps(SEND | one, ensure_ascii=False) for one in values]
    assert checked(tmp_path, *as_it_is).clean


def test_a_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(
        json.dumps(SEND).encode() + b"\n" + json.dumps(SEND).encode()[:-3] + b'\xff"}\n'
    )
    with pytest.raises(HistoryError) as caught:
        check([path])
    assert (caught.value.line_number, caught.value.field) == (2, "value")
    str(caught.value).encode()


@pytest.mark.parametrize("by", ["name", "way", "link"])
def test_a_file_that_is_given_twice_is_refused(tmp_path: Path, by: str) -> None:
    """Its polls would seem to go back."""
    path = tmp_path / "h.jsonl"
    path.write_text(json.dumps(SEND) + "\n")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "folder").mkdir()
    other = {"name": path, "way": tmp_path / "folder/../h.jsonl", "link": tmp_path / "link"}[by]
    with pytest.raises(HistoryError, match="this file is given twice"):
        check([path, other])
