"""`Store.describe_log_dirs` and `eoslog log-dirs`: what takes a store's space."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_calls import FAILED, assert_mistake, call

import eoslog
from eoslog import TopicPartition


@pytest.fixture
def filled(open_store):
    store = open_store()
    store.create_topics({"orders": 2, "bills": 1})
    with store.producer(transactional_id="till") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.append("orders", 1, [b"x" * 1000] * 1000)
    return store


def usage_of(root: Path) -> tuple[int, int, int]:
    """All files below a directory: number, bytes, and what they take, with the directories."""
    files = [path.lstat() for path in root.rglob("*") if path.is_file()]
    all_of_it = [path.lstat() for path in (root, *root.rglob("*"))]
    blocks = sum(one.st_blocks for one in all_of_it) * 512
    return len(files), sum(one.st_size for one in files), blocks


def test_every_file_is_counted_once(filled, store_path):
    filled.close()
    with eoslog.open(store_path, read_only=True) as store:
        found = store.describe_log_dirs()
    sums = tuple(sum(column) for column in zip(*(one[2:] for one in found), strict=True))
    assert sums == usage_of(store_path)
    by_path = {one.path: one for one in found}
    assert list(by_path) == sorted(by_path)
    assert by_path["orders-1"].topic_partition == TopicPartition("orders", 1)
    assert tuple(by_path["orders-1"][2:]) == usage_of(store_path / "orders-1")
    assert by_path["orders-1"].size_bytes > 1_000_000
    assert by_path["state/lmdb"].topic_partition is None
    assert {"state", "."} <= by_path.keys()


def test_a_store_that_is_open_shows_the_same_to_all(filled, store_path):
    with eoslog.open(store_path, read_only=True) as reader:
        assert [one.path for one in reader.describe_log_dirs()] == [
            one.path for one in filled.describe_log_dirs()
        ]


def test_the_command_shows_topics_the_largest_first(filled, store_path):
    lines = call("log-dirs", "--store", store_path).stdout.splitlines()
    rows = [line.split() for line in lines[2:]]
    assert rows[0][:3] == ["orders-*", "2", "partitions"]
    assert [row[0] for row in rows if row[0].startswith("bills")] == ["bills-*"]
    sizes = [int(row[-1]) for row in rows]
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert (rows[-1][0], sizes[-1]) == ("all", sum(sizes[:-1]))


def test_partitions_of_topics(filled, store_path):
    words = ("log-dirs", "--topic", "orders", "--topic", "bills", "--store", store_path)
    lines = call(*words).stdout.splitlines()
    names = [line.split()[0] for line in lines[2:]]
    assert (names[0], sorted(names[1:])) == ("orders-1", ["all", "bills-0", "orders-0"])
    found = call(*words, "--json").json
    assert [(one["topic"], one["partition"]) for one in found] == [
        ("bills", 0),
        ("orders", 0),
        ("orders", 1),
    ]
    assert found[2]["size_bytes"] == usage_of(store_path / "orders-1")[1]


def test_an_unknown_topic_is_a_failure(filled, store_path):
    answer = call("log-dirs", "--topic", "oders", "--store", store_path)
    assert_mistake(answer, FAILED, "oders", "UnknownTopicOrPartitionError")
