"""A broker that starts on an exported store: everything is there, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_broker import Broker, dump_log, wait_until
from store_copies import copy_store
from whole_store import T0, fill, plain, records_of, started

import eoslog
from eoslog.store.store import engine_of

pytestmark = pytest.mark.broker


def files_below(path: Path) -> dict[str, bytes]:
    """The content of all files, without those that are only locks."""
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in sorted(path.rglob("*"))
        if one.is_file() and one.suffix != ".lock" and one.name != "lock"
    }


def states(broker: Broker) -> dict[str, list[str]]:
    """What `kafka-transactions list` shows: producer id and state of each transactional id."""
    rows = [line.split() for line in broker.transactions("list").splitlines()]
    return {row[0]: row[2:] for row in rows if len(row) == 4 and row[0] != "TransactionalId"}


def dump_all(logs: Path, suffix: str, *options: str) -> str:
    """What Kafka's tool prints of all files of the topics of users, by one call."""
    files = [str(one) for one in sorted(logs.glob(f"[!_]*/*{suffix}")) if one.stat().st_size]
    return dump_log(Path(",".join(files)), *options)


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_everything_of_a_store_goes_on_in_a_broker(make_broker, tmp_path, end):
    path, store_path = tmp_path / "made", tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        fill(store)
        if end == "killed":
            copy_store(path, store_path)
    if end == "closed":
        copy_store(path, store_path)
    before = files_below(store_path)
    done = eoslog.export_kafka(store_path, tmp_path / "logs", link=end == "closed")
    assert files_below(store_path) == before
    assert (done.topics, done.partitions, done.transactional_ids) == (3, 6, 1)
    with eoslog.open(path) as store:
        expected = {
            level: records_of(store, level) for level in ("read_committed", "read_uncommitted")
        }
        producer_id = store.transactions()[0].producer_id
    dumped = dump_all(tmp_path / "logs", ".log", "--deep-iteration")
    assert "isvalid: false" not in dumped and "Found" not in dumped
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        dumped = dump_all(tmp_path / "logs", suffix)
        assert "Mismatches" not in dumped and "corrupt" not in dumped.lower(), dumped
        assert str(producer_id) in dumped or suffix in (".index", ".timeindex")
    broker = make_broker(logs=tmp_path / "logs")
    assert "-stray" not in broker.output
    # No leader is taken back while its coordinators read their logs.
    assert "Failed to load metadata" not in broker.output
    for level, of_partitions in expected.items():
        for where, records in of_partitions.items():
            found = [plain(one) for one in broker.records(*where, isolation_level=level)]
            assert found == records, (level, where)
    assert broker.committed("group", "t") == 7
    assert broker.committed("group-of-transactions", "t") == 4
    assert broker.committed("group-of-a-job", "t", 1) == 3
    described = broker.consumer_groups("--describe", "--all-groups")
    for group in ("group", "group-of-transactions", "group-of-a-job"):
        assert f"Consumer group '{group}' has no active members." in described
    assert "eoslog-version" not in described
    assert states(broker) == {"id": [str(producer_id), "CompleteAbort"]}
    # The same id goes on, with the same producer id, and fences what came before it.
    with broker.producer("id") as older, broker.producer("id") as client:
        client.begin_transaction()
        offset = len(expected["read_uncommitted"][T0]) + 6  # Markers.
        assert client.send("t", b"of the broker", partition=0).get(60).offset == offset
        client.commit_transaction()
        older.begin_transaction()
        with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
            older.send("t", b"late", partition=0).get(60)
    assert [one.value for one in broker.records("t", 0)][-1] == b"of the broker"
    assert states(broker)["id"][0] == str(producer_id)
    # A member of the group gets its partitions at once, and goes on where the store's stopped.
    with broker.consumer("group") as consumer:
        # What its leader knows no partitions of is assigned to nobody.
        wait_until("the topic's partitions", lambda: consumer.partitions_for_topic("t"))
        consumer.subscribe(["t"])
        # Members that the store had would be waited for longer.
        first = wait_until("records", lambda: consumer.poll(timeout_ms=200), timeout_s=40)
        offsets = [
            one.offset for records in first.values() for one in records if one.partition == 0
        ]
        assert not offsets or offsets[0] == 7
    broker.stop()
    broker.start()
    assert [one.value for one in broker.records("t", 0)][-1] == b"of the broker"
    broker.stop()
    assert files_below(store_path) == before  # Also where the broker has links to its files.


def test_no_client_gets_the_id_of_a_producer_of_the_store(make_broker, tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("t")
        for number in range(3000):
            store.producer().append("t", 0, [b"store-%d" % number])
    eoslog.export_kafka(tmp_path / "store", tmp_path / "logs")
    broker = make_broker(logs=tmp_path / "logs")
    for number in range(3):
        with broker.producer(enable_idempotence=True) as producer:
            metadata = producer.send("t", b"broker-%d" % number, partition=0).get(60)
            assert metadata.offset == 3000 + number
    with broker.producer("new") as producer:
        producer.begin_transaction()
        producer.send("t", b"of new", partition=0).get(60)
        producer.commit_transaction()
    expected = [b"store-%d" % number for number in range(3000)]
    expected += [b"broker-0", b"broker-1", b"broker-2", b"of new"]
    assert [one.value for one in broker.records("t")] == expected


def store_with_open_transactions(path: Path, copy: Path) -> None:
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t", partitions=2)
        done = started(store, "done")
        with done.transaction():
            done.send("t", b"done", partition=0)
            done.send_offsets_to_transaction({T0: 1}, "group")
        prepared = started(store, "prepared", transaction_timeout_ms=1000)
        prepared.begin_transaction()
        prepared.send("t", b"prepared", partition=1)
        prepared.send_offsets_to_transaction({T0: 3}, "group")
        prepared.prepare_transaction()
        undecided = started(store, "open", transaction_timeout_ms=1000)
        undecided.begin_transaction()
        undecided.send("t", b"open", partition=0)
        undecided.flush()
        copy_store(path, copy)


def test_kept_transactions_are_aborted_by_the_broker(make_broker, tmp_path):
    store_with_open_transactions(tmp_path / "made", tmp_path / "store")
    done = eoslog.export_kafka(tmp_path / "store", tmp_path / "logs", open_transactions="keep")
    assert [(one.transactional_id, one.prepared) for one in done.kept] == [
        ("open", False),
        ("prepared", True),
    ]
    broker = make_broker(
        logs=tmp_path / "logs",
        config={"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500},
    )
    ended = {"done": "CompleteCommit", "open": "CompleteAbort", "prepared": "CompleteAbort"}
    wait_until(
        "the broker ends the transactions",
        lambda: {one: row[1] for one, row in states(broker).items()} == ended,
    )
    assert len(broker.transactions("find-hanging", "--broker-id", "1").splitlines()) == 1
    assert [one.value for one in broker.records("t", 0)] == [b"done"]
    assert broker.records("t", 1) == []
    assert broker.committed("group", "t") == 1
    for transactional_id in ended:
        with broker.producer(transactional_id) as client:
            client.begin_transaction()
            client.send("t", transactional_id.encode(), partition=1).get(60)
            client.commit_transaction()
    assert [one.value for one in broker.records("t", 1)] == [b"done", b"open", b"prepared"]


def test_the_brokers_coordinator_is_newer_than_any_that_the_store_knows(make_broker, tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("t")
        producer = started(store, "id")
        with producer.transaction():
            producer.send("t", b"store")
        [state] = store.partition("t", 0).producers()
        # As a broker wrote it whose partitions changed their leaders often.
        engine_of(store).partition("t", 0).append_marker(
            state.producer_id, state.producer_epoch + 1, 5, True
        )
        assert store.partition("t", 0).producers()[0].coordinator_epoch == 5
    eoslog.export_kafka(tmp_path / "store", tmp_path / "logs")
    broker = make_broker(logs=tmp_path / "logs")
    with broker.producer("id") as client:
        client.begin_transaction()
        client.send("t", b"broker", partition=0).get(60)
        client.commit_transaction()
    values = [one.value for one in broker.records("t")]
    assert values == [b"store", b"broker"]
