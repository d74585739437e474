"""Groups of a store in a broker: each offset is committed there, and Kafka's tools describe all."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from kafka import OffsetAndMetadata as KafkaOffset
from kafka import TopicPartition as KafkaPartition
from kafka_broker import FIRST_GROUP, Broker, wait_until
from staged_jobs import load
from store_copies import copy_store

import eoslog
from eoslog import OffsetAndMetadata, TopicPartition
from eoslog.groups.metadata import ConsumerGroupMetadata
from eoslog.store.store import parts_of

pytestmark = pytest.mark.broker

OF_0_1_0 = Path(__file__).parents[1] / "format" / "golden" / "store_0_1_0.tar.gz"
ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
RECORDS = 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(path: Path, **options: Any) -> Any:
    return eoslog.open(path, create=True, durability="process", **options)


def make_records(store: Any) -> None:
    store.create_topic("orders", partitions=2)
    with store.producer() as producer:
        for partition in (0, 1):
            producer.append("orders", partition=partition, values=[b"x"] * RECORDS)


def commit_staged(store: Any, application: str, offsets: dict[str, dict[Any, Any]]) -> None:
    load(store, application, {("orders", 0): [b"staged"]}, offsets)


def commit_in_transaction(
    store: Any, group: str, offsets: dict[Any, Any], *, prepared: bool
) -> None:
    producer = store.producer(transactional_id=f"id of {group}")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"transactional", partition=0)
    producer.send_offsets_to_transaction(offsets, group)
    if prepared:
        store.commit_prepared([producer.prepare_transaction()])
    else:
        producer.commit_transaction()
    producer.close()


def described(broker: Broker, *arguments: str) -> dict[str, dict[str, tuple[str, str]]]:
    """What `kafka-consumer-groups --describe` shows: by group and `topic-n` the offset and lag."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    shown = broker.consumer_groups("--describe", *arguments)
    assert "Error" not in shown, shown
    for line in shown.splitlines():
        cells = line.split()
        if len(cells) == 9 and cells[0] != "GROUP":
            found.setdefault(cells[0], {})[f"{cells[1]}-{cells[2]}"] = (cells[3], cells[5])
    return found


def check_described(broker: Broker, groups: set[str]) -> None:
    """Kafka's tool describes each of these groups by its name."""
    shown = broker.consumer_groups("--describe", *(f"--group={group}" for group in sorted(groups)))
    assert "Error" not in shown, shown


def check_goes_on(broker: Broker, group: str, offset: int) -> None:
    """A member of the group, which reads what is committed, begins at its offset."""
    with broker.consumer(group) as consumer:
        consumer.subscribe(["orders"])
        found = wait_until(
            f"{group} reads", lambda: consumer.poll(500).get(KafkaPartition("orders", 0))
        )
        assert found[0].offset == offset
        consumer.commit({KafkaPartition("orders", 0): KafkaOffset(offset + 1, "", -1)})
    assert broker.committed(group, "orders") == offset + 1


def test_every_way_of_committing_is_committed_in_a_broker(make_broker, path):
    with opened(path) as store:
        make_records(store)
        store.consumer(group="plain").commit({ORDERS: OffsetAndMetadata(1, "a note"), OTHER: 2})
        commit_in_transaction(store, "transactional", {ORDERS: 3}, prepared=False)
        commit_in_transaction(store, "prepared", {ORDERS: 4}, prepared=True)
        commit_staged(store, "bulk", {"staged": {ORDERS: 5}})
        for version, offset in enumerate((6, 7)):
            offsets = {"job": {ORDERS: offset}, ConsumerGroupMetadata("job 2"): {OTHER: offset}}
            store.commit_staged("nightly", version, [], offsets=offsets)
        # An application whose group commits offsets itself, and one that never does.
        commit_staged(store, "own", {"own": {ORDERS: 8}})
        store.commit_staged("silent", 0, [])
        # What comes after staged offsets.
        commit_staged(
            store, "bulk", {"reset": {ORDERS: 9}, "gone": {ORDERS: 9}, "back": {OTHER: 1}}
        )
        store.consumer(group="reset").commit({ORDERS: 2})
        store.delete_group("gone")
        store.delete_group("back")
        commit_staged(store, "bulk", {"back": {ORDERS: 3}})
        # Written once more by compaction.
        commit_staged(store, "bulk", {"compacted": {ORDERS: 6}})
        number = parts_of(store).files.group_offsets.log.partition_of("compacted")
        end = parts_of(store).files.partitions.offsets_partition(number).log_end_offset
        assert parts_of(store).files.group_offsets.log.write_again(number, end)
        with store.consumer(group="members") as consumer:
            consumer.subscribe(["orders"])
            consumer.poll(timeout=0, max_records=1)
            consumer.commit({ORDERS: 4})
        with store.consumer(group="only members") as consumer:
            consumer.subscribe(["orders"])
            consumer.poll(timeout=0, max_records=1)
    broker = make_broker()
    broker.load(path)
    expected = {
        "plain": {"orders-0": 1, "orders-1": 2},
        "transactional": {"orders-0": 3},
        "prepared": {"orders-0": 4},
        "staged": {"orders-0": 5},
        "job": {"orders-0": 7},
        "own": {"orders-0": 8},
        "reset": {"orders-0": 2},
        "back": {"orders-0": 3},
        "compacted": {"orders-0": 6},
        "members": {"orders-0": 4},
    }
    shown = described(broker, "--all-groups")
    found = {
        group: {where: int(cells[0]) for where, cells in shown[group].items()} for group in expected
    }
    assert found == expected
    listed = set(broker.consumer_groups("--list").splitlines())
    assert listed == {*expected, "bulk", "nightly", "silent", "only members", "job 2", FIRST_GROUP}
    for way in ("--members", "--state"):
        assert "Error" not in broker.consumer_groups("--describe", "--all-groups", way)
    check_described(broker, {*expected, "bulk", "nightly", "silent", "only members", "job 2"})
    assert broker.committed("staged", "orders") == 5
    for group, offset in (("staged", 5), ("reset", 2), ("transactional", 3), ("members", 4)):
        check_goes_on(broker, group, offset)
    # And back: what the broker's clients have committed since.
    broker.stop()
    eoslog.import_kafka(broker.logs, path.with_name("back"))
    with opened(path.with_name("back")) as store:
        groups = store.groups()
        assert groups["staged"][ORDERS].offset == 6
        assert groups["reset"][ORDERS].offset == 3
        assert groups["plain"] == {
            ORDERS: OffsetAndMetadata(1, "a note"),
            OTHER: OffsetAndMetadata(2),
        }
        assert "gone" not in groups


def test_the_groups_of_a_store_of_0_1_0_are_loaded_once_it_was_opened(make_broker, path):
    with tarfile.open(OF_0_1_0) as archive:
        archive.extractall(path.parent, filter="data")
    with opened(path):
        pass
    broker = make_broker()
    broker.load(path)
    assert (
        described(broker, "--all-groups").items()
        >= {
            "bulk": {"orders-0": ("2", "13")},
            "overtaken-group": {"orders-0": ("3", "12")},
            "staged-group": {"orders-0": ("4", "11")},
            "transactional-group": {"orders-0": ("3", "12")},
        }.items()
    )
    check_described(broker, {"bulk", "nightly", "prepared-group"})
    check_goes_on(broker, "staged-group", 4)


def test_a_broker_waits_for_a_dead_member_no_longer_than_its_session(make_broker, path):
    interval_ms = 6000  # The session ends with it, or after Kafka's 45 seconds.
    with opened(path) as store:
        make_records(store)
        with store.consumer(
            group="group", config={"max.poll.interval.ms": interval_ms}
        ) as consumer:
            consumer.subscribe(["orders"])
            consumer.poll(timeout=0, max_records=1)
            consumer.commit({ORDERS: 1})
            copy = path.with_name("killed")
            copy_store(path, copy)
    broker = make_broker()
    broker.load(copy)
    assert "eoslog" in broker.consumer_groups("--describe", "--group=group", "--members")
    check_goes_on(broker, "group", 1)
