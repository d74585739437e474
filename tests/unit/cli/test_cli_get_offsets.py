"""`eoslog get-offsets`: Kafka's lines, and the offset at each kind of time."""

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog import TopicPartition

NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z


@pytest.fixture
def path(tmp_path):
    """The newest record of a partition is not the last one; a transaction is aborted, one open."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topics({"orders": 2, "bills": 1})
        times = [NOON_MS, NOON_MS + 2000, NOON_MS + 1000]
        store.producer().append("orders", 0, [b"0", b"1", b"2"], timestamps=times)
        till = store.producer(transactional_id="till")
        till.init_transactions()
        till.begin_transaction()
        till.send("orders", b"3", partition=1, timestamp_ms=NOON_MS)
        till.prepare_transaction()
        store.delete_records({TopicPartition("orders", 0): 1})
    return path


def lines(path, *arguments):
    answer = call("get-offsets", *arguments, "--store", path)
    assert answer.status == DONE, answer
    return answer.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["bills:0:0", "orders:0:3", "orders:1:1"]),
        (("orders", "--time", "-1"), ["orders:0:3", "orders:1:1"]),
        (("orders", "--time", "earliest"), ["orders:0:1", "orders:1:0"]),
        (("^b", "--time", "-2"), ["bills:0:0"]),
        (("--time", "max-timestamp"), ["bills:0:", "orders:0:1", "orders:1:0"]),
        (("^o", "--time", "-3", "--partition", 1), ["orders:1:0"]),
        (("orders", "--time", NOON_MS + 2000), ["orders:0:1", "orders:1:"]),
        (("orders", "--time", "2026-01-31T13:00:02+01:00"), ["orders:0:1", "orders:1:"]),
        (("orders", "--time", "P36500D", "--partition", 1), ["orders:1:0"]),
        (("orders", "--time", "PT0S"), ["orders:0:", "orders:1:"]),
    ],
)
def test_offsets_by_time(path, arguments, expected):
    assert lines(path, *arguments) == expected


def test_a_line_is_what_delete_records_takes(path):
    (line,) = lines(path, "orders", "--partition", 0, "--time", "latest")
    assert call("delete-records", "--offset", line, "--yes", "--store", path).status == DONE
    assert lines(path, "orders", "--partition", 0, "--time", "earliest") == [line]


def test_offsets_as_json(path):
    found = call("get-offsets", "orders", "--time", NOON_MS + 1, "--json", "--store", path).json
    assert found == [
        {"topic": "orders", "partition": 0, "offset": 1, "timestamp_ms": NOON_MS + 2000},
        {"topic": "orders", "partition": 1, "offset": None, "timestamp_ms": None},
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("oders",), FAILED, ["oders", "UnknownTopicOrPartitionError"]),
        (("orders", "--partition", 2), FAILED, ["orders", "not 2"]),
        (("orders", "--time", "noon"), WRONG_USE, ["--time", "noon"]),
        (("^(",), WRONG_USE, ["TOPIC", "regular expression"]),
    ],
)
def test_wrong_arguments_are_named(path, arguments, status, words):
    assert_mistake(call("get-offsets", *arguments, "--store", path), status, *words)
