"""A broker's log directories become a store: the same records, offsets, groups, transactions."""

import os
import re
import time
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED, call
from kafka import OffsetAndMetadata as KafkaOffset
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka_broker import INTERNAL_TOPICS, Broker, run_tool
from reference_model.batch_codec import place_batch
from store_copies import copy_store

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StoreInUseError, UnsupportedCompressionTypeError
from eoslog.exchange.import_plan import TopicSetting
from eoslog.exchange.kafka_import import EndedTransaction
from eoslog.fs.offline_log import OfflineLog
from eoslog.store.store import parts_of

pytestmark = pytest.mark.broker

LEVELS = ("read_committed", "read_uncommitted")
WHERE = [TopicPartition(name, number) for name in ("events", "again") for number in (0, 1)]
E0 = KafkaPartition("events", 0)
PAGE = Path(__file__).parents[2] / "docs" / "study-a-broker.md"
SMALL = {"segment.bytes": "1048576", "compression.type": "producer"}


def fill(broker):
    """Topics, records of all shapes, groups, transactions; some settings that changed."""
    broker.create_internal_topics()
    broker.create_topics({"events": 2}, config={**SMALL, "retention.ms": "900"})
    broker.create_topics({"again": 1, "gone": 1}, config={"max.message.bytes": "2000000"})
    broker.create_topics({"keyed": 1}, config={"cleanup.policy": "compact"})
    with broker.producer() as producer:
        for number in range(3):
            producer.send("gone", b"deleted %d" % number).get(60)
    with broker.admin() as admin:
        changed = {"retention.ms": "-1", "index.interval.bytes": "512", "flush.ms": "1000"}
        topic = ConfigResource(ConfigResourceType.TOPIC, "events", configs=changed)
        admin.alter_configs([topic])
        every = ConfigResource(ConfigResourceType.BROKER, "1", configs={"log.roll.ms": "70000000"})
        admin.alter_configs([every])
        admin.delete_topics(["again", "gone"])
    broker.create_topics({"again": 2})
    # A producer whose newest batch is a day old is forgotten.
    base_ms = int(time.time() * 1000) - 60_000
    with broker.producer(enable_idempotence=True) as producer:
        for number in range(600):
            producer.send(
                "events",
                key=None if number % 3 and number % 11 != 5 else b"k%d" % (number % 7),
                value=None if number % 11 == 5 else b"%d" % number + b"x" * (number * 41 % 9000),
                headers=[("h", b"%d" % number), ("h", b""), ("empty", b"")][: number % 4],
                partition=number % 2,
                timestamp_ms=base_ms + number * 17 % 1000,
            )
    with broker.producer("id") as producer:
        for number in range(10):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send("events", b"of transaction %d" % number, partition=partition)
                producer.send("again", b"again %d" % number, partition=partition)
            offsets = {E0: KafkaOffset(number, "note", -1)}
            producer.send_offsets_to_transaction(offsets, "of-transactions")
            (producer.abort_transaction if number % 3 == 2 else producer.commit_transaction)()
    with broker.consumer("plain") as consumer:
        consumer.commit({E0: KafkaOffset(33, "a note", -1)})
    with broker.producer() as producer:
        producer.send("keyed", key=b"k", value=b"v").get(60)


def seen_in_broker(broker):
    return {
        (where, level): [
            (one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
            for one in broker.records(where.topic, where.partition, isolation_level=level)
        ]
        for where in WHERE
        for level in LEVELS
    }


def seen_in_store(store):
    found = {}
    for where in WHERE:
        for level in LEVELS:
            with store.consumer(isolation_level=level) as consumer:
                consumer.assign([where])
                consumer.seek(where, 0)
                records = []
                while more := consumer.poll(timeout=0):
                    records += more
                found[where, level] = [
                    (one.offset, one.timestamp_ms, one.key, one.value, tuple(one.headers))
                    for one in records
                ]
    return found


def offsets_of(store, group):
    return {where: offset.offset for where, offset in store.groups()[group].items()}


def tree(paths):
    return {
        one: (one.stat().st_mtime_ns, one.read_bytes())
        for path in paths
        for one in path.rglob("*")
        if one.is_file() and one.suffix not in (".index", ".timeindex")
    }


def end_offsets(broker):
    with broker.consumer() as consumer:
        return consumer.end_offsets([KafkaPartition(*where) for where in WHERE])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A broker with two log directories; a copy of them after it was killed, what its clients saw
    after it had been stopped, and the directories then.
    """
    directory = tmp_path_factory.mktemp("imported")
    broker = Broker(directory / "broker", two_log_dirs=True)
    broker.start()
    try:
        fill(broker)
        with broker.producer("open") as producer:
            producer.begin_transaction()
            producer.send("events", b"never", partition=0).get(60)
            with pytest.raises(StoreInUseError, match="a broker runs"):
                eoslog.import_kafka(broker.all_logs, directory / "store")
            broker.kill()
        copies = [copy_store(one, directory / f"killed-{one.name}") for one in broker.all_logs]
        broker.start()
        seen = seen_in_broker(broker)
        groups = {
            group: broker.committed(group, "events") for group in ("plain", "of-transactions")
        }
        broker.stop()
        yield broker.all_logs, copies, seen, groups
    finally:
        broker.kill()


@pytest.mark.parametrize("kind", ["killed", "stopped", "linked"])
def test_a_store_has_all_that_the_broker_had(stopped, tmp_path, kind):
    logs, killed, seen, groups = stopped
    sources = killed if kind == "killed" else logs
    path = tmp_path / "store"
    before = tree(sources)
    if kind == "linked":
        # On the file system of the directories.
        path = logs[0].parent / "linked-store"
    made = eoslog.import_kafka(sources, path, link=kind == "linked")
    assert tree(sources) == before
    assert (made.topics, made.partitions) == (4, 6)
    assert made.unclean == (tuple(killed) if kind == "killed" else ())
    ended = [one for one in made.ended_transactions if one.transactional_id == "open"]
    # Also of the stopped broker: a transaction that no client ends outlives a restart.
    assert [one.end for one in ended] == ["aborted"]
    assert made.cut == made.missing == made.other_groups == ()
    assert (made.linked_bytes > 0) is (kind == "linked")
    assert all(re.search("-(delete|stray)$", one.what) for one in made.left_out)
    assert made.not_applied == (
        TopicSetting("topic events", "flush.ms", "1000"),
        TopicSetting("topic keyed", "cleanup.policy", "compact"),
    )
    assert made.retention == ()
    for number in range(2):
        with eoslog.open(path) as store:
            assert not parts_of(store).files.partitions.unrecovered
            assert seen_in_store(store) == seen
            assert offsets_of(store, "plain") == {TopicPartition(*E0): groups["plain"]}
            of_transactions = {TopicPartition(*E0): groups["of-transactions"]}
            assert offsets_of(store, "of-transactions") == of_transactions
            assert store.groups()["plain"][TopicPartition(*E0)].metadata == "a note"
            events = store.topics()["events"]
            assert dict(events.config) == {
                "segment.bytes": 1_048_576,
                "segment.ms": 70_000_000,
                "retention.ms": -1,
                "index.interval.bytes": 512,
                "compression.type": "producer",
                "flush.ms": "1000",
            }
            assert dict(store.topics()["again"].config) == {"segment.ms": 70_000_000}
            text = (sources[0].parent / "x", *(one / "events-0" for one in sources))
            [metadata] = [one / "partition.metadata" for one in text if one.is_dir()]
            assert f"topic_id: {events.topic_id}" in metadata.read_text()
            if number:
                assert store.verify() == []
    check_goes_on(path, seen)
    if kind == "linked":
        assert tree(sources) == before


def check_goes_on(path, seen):
    """The ids and producers of the broker go on in the store."""
    [newest] = [
        (header, data)
        for header, data in list(OfflineLog(path / "events-1").batches())
        if header.producer_id >= 0 and not header.is_transactional
    ][-1:]
    with eoslog.open(path) as store:
        log = store.partition("events", 1)
        epochs = {one.producer_id: one.producer_epoch for one in log.producers()}
        before = store.describe_transaction("id")
        producer = store.producer(transactional_id="id")
        producer.init_transactions()
        with producer.transaction():
            producer.send("events", b"after", partition=1)
            producer.send_offsets_to_transaction({TopicPartition(*E0): 77}, "of-transactions")
        after = store.describe_transaction("id")
        assert after.producer_id == before.producer_id
        assert after.producer_epoch > max(before.producer_epoch, epochs[after.producer_id])
        assert offsets_of(store, "of-transactions") == {TopicPartition(*E0): 77}
        with store.producer() as other:
            other.append("events", partition=1, values=[b"another producer"])
            assert other.producer_id not in epochs
        found = seen_in_store(store)[WHERE[1], "read_committed"]
        expected = [one[3] for one in seen[WHERE[1], "read_committed"]]
        assert [one[3] for one in found] == [*expected, b"after", b"another producer"]
        # The last batch that a producer of the broker wrote is no new one.
        header, data = newest
        end = log.log_end_offset
        assert log.append_batch(place_batch(data, 0)).base_offset == header.base_offset
        assert log.log_end_offset == end


def test_the_page_on_studying_a_broker(stopped, tmp_path, monkeypatch):
    logs, _, seen, _ = stopped
    blocks = re.findall(r"^```(console|python)\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(blocks) > 3
    (tmp_path / "kafka").mkdir()
    for number, path in enumerate(logs, 1):
        copy_store(path, tmp_path / "kafka" / f"logs-{number}")
    monkeypatch.chdir(tmp_path)
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), {})
            continue
        for command in re.findall(r"^\$ eoslog (.*)$", text, re.M):
            answer = call(*command.split())
            assert answer.status == DONE, (command, answer)
    assert sorted(os.listdir()) == ["kafka", "later", "linked", "study"]  # noqa: PTH208
    with eoslog.open("study") as store:
        assert seen_in_store(store) == seen


def test_groups_of_the_new_protocol_and_of_shares(make_broker, tmp_path):
    broker = make_broker()
    broker.create_topics({"t": 1})
    with broker.producer() as producer:
        for number in range(5):
            producer.send("t", b"%d" % number).get(60)
    common = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "t")
    run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*common, "--group", "new", "--from-beginning", "--max-messages", "5"),
        *("--consumer-property", "group.protocol=consumer", "--timeout-ms", "60000"),
        check=False,
    )
    run_tool(
        "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        *(*common, "--group", "shares", "--timeout-ms", "5000"),
        check=False,
    )
    assert broker.committed("new", "t") == 5
    broker.stop()
    made = eoslog.import_kafka(broker.logs, tmp_path / "store")
    assert ("new", "consumer") in made.other_groups
    assert ("shares", "share") in made.other_groups
    assert "__share_group_state" in made.kafkas_topics
    with eoslog.open(tmp_path / "store") as store:
        assert offsets_of(store, "new") == {TopicPartition("t", 0): 5}
        assert store.verify() == []
        with store.consumer(group="new") as consumer:
            consumer.subscribe(["t"])
            assert consumer.poll(timeout=0) == []
    # Internal logs that a broker compressed are refused by name.
    broker.start()
    with broker.admin() as admin:
        packed = {"compression.type": "gzip"}
        for name in INTERNAL_TOPICS:
            if (broker.logs / f"{name}-0").exists():
                topic = ConfigResource(ConfigResourceType.TOPIC, name, configs=packed)
                admin.alter_configs([topic])
    with broker.consumer("plain") as consumer:
        consumer.commit({KafkaPartition("t", 0): KafkaOffset(1, "", -1)})
    broker.stop()
    with pytest.raises(UnsupportedCompressionTypeError, match="gzip"):
        eoslog.import_kafka(broker.logs, tmp_path / "refused")
    assert call("import-kafka", broker.logs, tmp_path / "refused").status == FAILED
    assert not (tmp_path / "refused").exists()


def test_a_killed_brokers_transactions_of_every_state_end(make_broker, tmp_path):
    broker = make_broker()
    broker.create_topics({"t": 1})
    broker.create_topics({"packed": 1}, config={"compression.type": "zstd"})
    with broker.producer() as producer:
        producer.send("packed", b"x" * 500).get(60)
    packed = (broker.logs / "packed-0" / f"{0:020d}.log").read_bytes()
    with broker.producer("one") as one, broker.producer("two") as two:
        for producer in (one, two):
            producer.begin_transaction()
            producer.send("t", b"open", partition=0).get(60)
        two.commit_transaction()
        broker.kill()
    made = eoslog.import_kafka(broker.logs, tmp_path / "store")
    ended = {one.transactional_id: one for one in made.ended_transactions}
    assert isinstance(ended["one"], EndedTransaction)
    assert ended["one"].end == "aborted"
    assert ended.get("two", EndedTransaction("two", 0, "committed")).end == "committed"
    assert (tmp_path / "store" / "packed-0" / f"{0:020d}.log").read_bytes() == packed
    with eoslog.open(tmp_path / "store") as store, store.consumer() as consumer:
        assert store.partition("packed", 0).log_end_offset == 1
        assert store.partition("t", 0).last_stable_offset == store.partition("t", 0).log_end_offset
        consumer.assign([TopicPartition("t", 0)])
        assert [one.value for one in consumer.poll(timeout=0)] == [b"open"]
