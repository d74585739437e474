"""`eoslog dump` of a store's files, against Kafka's tool, line by line."""

import tarfile
from pathlib import Path

import pytest
from cli_calls import DONE, call
from commit_journals import LARGE, with_journal
from kafka_broker import dump_log, partition_folders
from reference_model import batch_codec as codec
from staged_jobs import load

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import BatchEncoder

pytestmark = pytest.mark.broker

OF_0_1_0 = Path(__file__).parents[1] / "format" / "golden" / "store_0_1_0.tar.gz"
DECODERS = {
    "__transaction_state": "--transaction-log-decoder",
    "__consumer_offsets": "--offsets-decoder",
}


def fill(path):
    # By a journal: the decisions name where their logs end, in a field that is not Kafka's.
    with with_journal(eoslog.open(path, create=True, config=LARGE)) as store:
        store.create_topic("t", 2)
        for number in range(3):
            producer = store.producer(transactional_id="x")
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"v", key=b"k", headers=[("h", b"x")], partition=0)
            producer.send("t", None, key=b"k", partition=1)
            producer.send("t", b"v", partition=1)
            producer.send_offsets_to_transaction({TopicPartition("t", 0): number}, "g")
            producer.abort_transaction() if number == 1 else producer.commit_transaction()
        with store.producer(name="named") as producer:
            producer.send("t", b"v", partition=0)
        load(store, "bulk", {("t", 0): [b"v"]})
        with store.consumer(group="members") as consumer:
            consumer.subscribe(["t"])
            consumer.poll(timeout=5)
            consumer.commit()


def lines_by_file(text):
    """The lines of each file, by its path: the tools print the files in an order of their own."""
    found = {}
    for line in text.splitlines():
        if line.startswith("Dumping "):
            path = line.removeprefix("Dumping ")
            found[path] = lines = []
        lines.append(line)
    return found


def check_lines(paths, *options):
    """Every line of these files is as Kafka's tool prints it."""
    ours = call("dump", *[one for one in options if not one.endswith("-decoder")], *paths)
    assert ours.status == DONE
    theirs = lines_by_file(dump_log(",".join(map(str, paths)), *options))
    found = lines_by_file(ours.stdout)
    assert found.keys() == theirs.keys() == set(map(str, paths))
    for path, lines in theirs.items():
        assert found[path] == lines, path


def files_of(path, pattern, topics):
    return [
        file
        for folder in partition_folders(path)
        if folder.name.rpartition("-")[0] in topics
        for file in sorted(folder.glob(pattern))
    ]


def test_every_line_is_kafkas(tmp_path):
    path = tmp_path / "store"
    fill(path)
    check_lines(files_of(path, "*.log", {"t"}), "--print-data-log")
    for topic, decoder in DECODERS.items():
        check_lines(files_of(path, "*.log", {topic}), "--print-data-log", decoder)
    indexes = [
        file
        for pattern in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot")
        for file in files_of(path, pattern, {"t", *DECODERS})
        if file.stat().st_size
    ]
    assert {file.suffix for file in indexes} >= {".txnindex", ".snapshot"}
    check_lines(indexes)


def test_members_of_consumer_groups_are_shown_as_kafka_shows_them(tmp_path):
    """Which never were members of a classic group, which are, and as Kafka does not write them."""
    path = tmp_path / "__consumer_offsets-0" / f"{0:020d}.log"
    path.parent.mkdir()
    member = bytes.fromhex("0000 00 00 0263 0268 02 0274 00 00000bb8 00")
    tagged = ("00", "01000100", "01000c01 00000bb8 02 0270 027800 00", "01000701 00000000 01 00")
    keys = [b"\0\5\0\1g\0\1m"] * len(tagged)
    values = [member + bytes.fromhex(one) for one in tagged]
    batch = BatchEncoder().encode_columns(values, keys, timestamp_ms=1_000, base_offset=0)
    path.write_bytes(batch)
    check_lines([path], "--print-data-log", "--offsets-decoder")


def test_times_of_an_append_are_shown_as_kafka_shows_them(tmp_path):
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.parent.mkdir()
    batch = codec.simple_batch([b"a", b"b"], attributes=codec.LOG_APPEND_TIME)
    path.write_bytes(batch)
    check_lines([path], "--print-data-log")


def test_what_0_1_0_knew_of_producers_is_shown_as_kafka_shows_it(tmp_path):
    with tarfile.open(OF_0_1_0) as archive:
        archive.extractall(tmp_path, filter="data")
    files = files_of(tmp_path / "store", "*.snapshot", {"orders", *DECODERS})
    assert any("lastSequence: -1" in call("dump", file).stdout for file in files)
    check_lines(files)
