"""Format strings of `consume` and `produce`: kcat's tokens, and what they do to a record."""

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog import Record
from eoslog.cli.records.record_format import record_encoder

TIME_MS = 1_769_860_800_000
RECORD = Record("orders", 3, 17, TIME_MS, 0, b"key", b"v\xffl", (("a", b"1"), ("b", None)))
EMPTY = Record("orders", 0, 0, -1, 0, None, None)


@pytest.mark.parametrize(
    ("form", "expected", "of_empty"),
    [
        ("%t", b"orders", b"orders"),
        ("%p", b"3", b"0"),
        ("%o", b"17", b"0"),
        ("%T", b"1769860800000", b"-1"),
        ("%k", b"key", b""),
        ("%K", b"3", b"-1"),
        ("%s", b"v\xffl", b""),
        ("%S", b"3", b"-1"),
        ("%R", b"\0\0\0\3", b"\xff\xff\xff\xff"),
        ("%h", b"a=1,b=NULL", b""),
        ("%%t", b"%t", b"%t"),
        (r"\n\t\r\\\x41\x00", b"\n\t\r\\A\0", b"\n\t\r\\A\0"),
        (r"%t-%p@%o\n", b"orders-3@17\n", b"orders-0@0\n"),
        ("é%k", "é".encode() + b"key", "é".encode()),
        ("", b"", b""),
    ],
)
def test_a_token_prints_what_kcat_prints(form, expected, of_empty):
    assert record_encoder(form)(RECORD) == expected
    assert record_encoder(form)(EMPTY) == of_empty


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")
        store.create_topic("wide", partitions=4)
    return path


@pytest.mark.parametrize("command", ["consume", "produce"])
@pytest.mark.parametrize(
    ("form", "word"), [("%x", "no %x"), ("%s%", "no %"), (r"\q", r"no \q"), (r"\x4", r"no \x")]
)
def test_what_is_no_format_is_wrong_use(path, command, form, word):
    answer = call(command, "orders", "--format", form, "--store", path, stdin="a\n")
    assert_mistake(answer, WRONG_USE, "--format", word)


@pytest.mark.parametrize(
    ("form", "word"),
    [("%k%s", "between %k and %s"), ("%s %s", "twice"), ("%o %s", "no %o"), ("%S", "no %S")],
)
def test_a_line_that_could_be_taken_in_two_ways_is_wrong_use(path, form, word):
    answer = call("produce", "orders", "-f", form, "--store", path, stdin="a\n")
    assert_mistake(answer, WRONG_USE, "--format", word)


def records(path, topic):
    return call("consume", topic, "--json", "--store", path).json_lines


def test_what_consume_prints_in_a_form_produce_reads(path):
    form = r"%p|%T|%k|%h|%s\n"
    given = f"2|{TIME_MS}|k|a=1,b=x=y|v|w\n1|5|||\n"
    assert call("produce", "wide", "-f", form, "--store", path, stdin=given).status == DONE
    answer = call("consume", "wide", "-f", form, "--store", path)
    assert sorted(answer.stdout.splitlines()) == sorted(given.splitlines())
    first = next(one for one in records(path, "wide") if one["partition"] == 2)
    assert (first["timestamp_ms"], first["key"], first["value"]) == (TIME_MS, "k", "v|w")
    assert first["headers"] == [["a", "1"], ["b", "x=y"]]


def test_a_form_without_a_value_writes_nulls(path):
    call("produce", "orders", "-f", "%k", "--store", path, stdin="gone\n")
    (one,) = records(path, "orders")
    assert (one["key"], one["value"]) == ("gone", None)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("no comma", "is not of the form"),
        ("x,a=1,v", "is not of the form"),
        ("5,a,v", "header 'a' is not NAME=VALUE"),
    ],
)
def test_a_line_of_another_form_is_named(path, line, word):
    answer = call("produce", "orders", "-f", "%T,%h,%s", "--store", path, stdin=f"7,,a\n{line}\n")
    assert_mistake(answer, FAILED, "line 2", word, "the lines before it, 1, are in orders")
    assert [one["value"] for one in records(path, "orders")] == ["a"]


def test_a_partition_of_a_line_that_is_not_there_is_named(path):
    answer = call("produce", "orders", "-f", "%p %s", "--store", path, stdin="0 a\n7 b\n")
    assert_mistake(answer, FAILED, "not 7", "at line 2")


def test_options_say_what_lines_do_not(path):
    options = ("--header", "a=1", "--header", "b=", "--key", "k", "--timestamp", "2026-01-31T12:00")
    call("produce", "wide", *options, "--store", path, stdin="v\n")
    call("produce", "orders", *options, "-f", "%k %h %s", "--store", path, stdin="own c=3 v\n")
    (one,) = records(path, "wide")
    assert (one["key"], one["timestamp_ms"]) == ("k", TIME_MS)
    assert one["headers"] == [["a", "1"], ["b", ""]]
    (one,) = records(path, "orders")
    assert one["key"] == "own"
    assert one["headers"] == [["a", "1"], ["b", ""], ["c", "3"]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--header", "a"), ["--header", "NAME=VALUE"]),
        (("--timestamp", "noon"), ["--timestamp", "noon"]),
        (("--key-separator", ":", "-f", "%s"), ["--key-separator", "--format"]),
        (("--name", "n", "--transactional-id", "t"), ["--name", "--transactional-id"]),
    ],
)
def test_wrong_options_are_wrong_use(path, options, words):
    answer = call("produce", "orders", *options, "--store", path, stdin="a\n")
    assert_mistake(answer, WRONG_USE, *words)


def test_a_name_with_keys_of_a_form_skips_what_is_there(path):
    arguments = ("produce", "wide", "--name", "n", "-f", "%k %s", "--json", "--store", path)
    assert call(*arguments, stdin="a 1\nb 2\n").json["appended"] == 2
    assert call(*arguments, stdin="a 1\nb 2\nc 3\n").json["appended"] == 1
