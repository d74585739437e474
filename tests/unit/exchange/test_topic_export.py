"""An export writes the committed records of a snapshot, and a file only when it is whole."""

import fcntl
import io
import json
import os
from datetime import UTC, datetime

import pytest
from reference_model import batch_codec
from stores import values_of

import eoslog
from eoslog.bindings.record_batch import crc32c
from eoslog.errors import (
    InvalidRecordError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    StoreError,
    StoreInUseError,
    UnknownTopicOrPartitionError,
)
from eoslog.exchange import topic_export


@pytest.fixture
def topic(store):
    """Two partitions with five records each, at times 0 to 4 s."""
    store.create_topic("t", partitions=2)
    with store.producer() as producer:
        for partition in range(2):
            values = [b"%d-%d" % (partition, number) for number in range(5)]
            producer.append("t", partition, values, timestamps=[n * 1000 for n in range(5)])
    return store


@pytest.fixture
def file(tmp_path):
    return tmp_path / "x.jsonl"


def exported(store, **options):
    """The values that an export writes."""
    text = io.BytesIO()
    result = eoslog.export_topic(store, "t", text, **options)
    values = [json.loads(line)["value"] for line in text.getvalue().splitlines()]
    assert result.records == len(values)
    assert result.file is None
    return values


def test_headers_are_those_that_a_consumer_gets(store):
    """Also where another client wrote a name that is no UTF-8."""
    headers = (("a-nme", b"\xff"), ("n", None), ("n", b""), ("n", b'"\n'), ("", "\u00e9".encode()))
    records = [
        batch_codec.ModelRecord(0, 5, None, b"v"),
        batch_codec.ModelRecord(1, 5, None, b"v", headers),
        batch_codec.ModelRecord(2, 5, None, b"v"),
    ]
    batch = bytearray(batch_codec.encode_batch(records)).replace(b"a-nme", b"a\xf0\x9fme")
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    store.create_topic("t")
    store.partition("t", 0).append_batch(bytes(batch))
    with store.consumer() as consumer:
        consumer.assign([("t", 0)])
        polled = consumer.poll(timeout=5)
    assert polled[1].headers[0] == ("a\N{REPLACEMENT CHARACTER}me", b"\xff")
    text = io.BytesIO()
    eoslog.export_topic(store, "t", text)
    first, second, third = (json.loads(line)["headers"] for line in text.getvalue().splitlines())
    assert first == third == []
    names = [name for name, _ in polled[1].headers]
    assert [name for name, _ in second] == names
    assert [value for _, value in second] == [{"base64": "/w=="}, None, "", '"\n', "\u00e9"]


def test_all_partitions_or_some_and_ranges_of_them(topic):
    first, second = ([f"{partition}-{number}" for number in range(5)] for partition in (0, 1))
    assert exported(topic) == first + second
    assert exported(topic, partitions=[1, 0, 1]) == second + first
    assert exported(topic, start=1, end=3) == first[1:3] + second[1:3]
    assert exported(topic, start=5) == []
    assert exported(topic, start=3, end=1) == []
    at = datetime(1970, 1, 1, 0, 0, 1, 500_000)
    assert exported(topic, start=at) == first[2:] + second[2:]
    assert exported(topic, end=at.replace(tzinfo=UTC)) == first[:2] + second[:2]
    assert exported(topic, start=datetime(2000, 1, 1)) == []
    assert exported(topic, end=datetime(2000, 1, 1)) == first + second
    for bound in (6, -1):
        with pytest.raises(OffsetOutOfRangeError, match="which has 0 to 5"):
            exported(topic, start=bound)


def test_it_ends_at_the_snapshot_of_its_beginning(topic, monkeypatch):
    monkeypatch.setattr(topic_export, "_FETCH_BYTES", 100)
    before = [*values_of(topic, "t", 0), *values_of(topic, "t", 1)]
    done = []

    def append_more(*progress):
        done.append(progress)
        with topic.producer() as producer:
            for partition in range(2):
                producer.append("t", partition, [b"later"])

    found = exported(topic, progress=append_more)
    assert [value.encode() for value in found] == before
    assert done[-1] == (10, 10)


def test_open_and_aborted_transactions_are_left_out(topic):
    with topic.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.append("t", 0, [b"aborted"])
        producer.abort_transaction()
        producer.begin_transaction()
        producer.append("t", 0, [b"open"])
        assert exported(topic, partitions=[0]) == [f"0-{number}" for number in range(5)]
        producer.commit_transaction()
    assert exported(topic, partitions=[0])[5:] == ["open"]


def test_a_store_that_is_only_read_is_exported(topic, store_path):
    topic.close()
    with eoslog.open(store_path, read_only=True) as reader:
        assert len(exported(reader)) == 10


def test_a_file_is_replaced_when_the_new_one_is_whole(topic, file, monkeypatch):
    file.write_text("before")
    os.link(file, file.with_name("other"))

    def look(*_):
        assert file.read_text() == "before"
        assert file.with_name("x.jsonl.tmp").exists()

    result = eoslog.export_topic(topic, "t", file, progress=look)
    assert (result.file, result.file_bytes) == (file, file.stat().st_size)
    assert file.with_name("other").read_text() == "before"

    def fail(*_):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        eoslog.export_topic(topic, "t", file, progress=fail)
    assert file.stat().st_size == result.file_bytes
    assert sorted(one.name for one in file.parent.iterdir()) == ["other", "store", "x.jsonl"]


def test_what_a_killed_export_left_is_written_over(topic, file):
    file.with_name("x.jsonl.tmp").write_bytes(b"x" * 100_000)
    eoslog.export_topic(topic, "t", file)
    assert len(file.read_bytes().splitlines()) == 10
    assert not file.with_name("x.jsonl.tmp").exists()


def test_two_exports_to_one_file_at_once(topic, file):
    with open(file.with_name("x.jsonl.tmp"), "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreInUseError, match="another export"):
            eoslog.export_topic(topic, "t", file)
    assert not file.exists()


def test_what_is_no_file_is_not_replaced(topic, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(StoreError, match="is no file"):
            eoslog.export_topic(topic, "t", path)
    (tmp_path / "link").symlink_to(topic.path / "meta.properties")
    for path in (topic.path / "new", tmp_path / "link"):
        with pytest.raises(StoreError, match="among those of the store"):
            eoslog.export_topic(topic, "t", path)


def test_csv_refuses_bytes_that_are_no_text(topic, file):
    with topic.producer() as producer:
        producer.append("t", 1, [b"\xff"])
    with pytest.raises(InvalidRecordError, match=r"t-1, offset 5: .* not UTF-8"):
        eoslog.export_topic(topic, "t", file, format="csv")
    assert not file.exists()


def test_a_topic_without_records_is_an_empty_file(store, tmp_path):
    store.create_topic("t")
    sizes = {"jsonl": 0, "csv": 51}
    for suffix, size in sizes.items():
        result = eoslog.export_topic(store, "t", tmp_path / f"x.{suffix}")
        assert (result.records, result.file_bytes) == (0, size)
        assert eoslog.import_file(store, "t", result.file).records == 0


def test_parquet_goes_to_a_pipe_too(topic, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as reader:
        with open(write_end, "wb") as writer:
            result = eoslog.export_topic(topic, "t", writer, format="parquet")
        text = reader.read()
    assert result.file_bytes == len(text)
    assert parquet.read_table(io.BytesIO(text)).num_rows == 10


def test_wrong_arguments_are_refused(topic, file):
    with pytest.raises(UnknownTopicOrPartitionError):
        eoslog.export_topic(topic, "no", file)
    with pytest.raises(UnknownTopicOrPartitionError):
        exported(topic, partitions=[2])
    with pytest.raises(InvalidRequestError, match="format must be one of jsonl, csv, parquet"):
        exported(topic, format="lines")
    for options in ({"start": "1"}, {"end": 1.5}, {"partitions": 1}, {"progress": 1}):
        with pytest.raises(TypeError):
            exported(topic, **options)
    with pytest.raises(TypeError):
        eoslog.export_topic(topic, "t", 1)
    with pytest.raises(TypeError):
        eoslog.export_topic(None, "t", file)
    assert not file.exists()
