"""What recorded clients take: as the clients themselves, and what makes no history unreadable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eoslog
from eoslog import OffsetAndMetadata, TopicPartition
from eoslog.checking import Recorder, check
from eoslog.checking.recorded_consumer import RecordedConsumer
from eoslog.checking.recorded_producer import RecordedProducer
from eoslog.errors import UnknownTopicOrPartitionError

WHERE = TopicPartition("t", 0)
RECORDS = 9
WRONG = [True, 1.0, "1", None, -1]


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "h.jsonl"


@pytest.fixture
def recorder(history: Path) -> Iterator[Recorder]:
    """Its history is clean at the end."""
    with Recorder(history, identify=lambda key, value: (value or key or b"").decode()) as recorder:
        yield recorder
    report = check([history])
    assert report.clean, "\n".join(report.lines())


@pytest.fixture
def store(tmp_path: Path, recorder: Recorder) -> Iterator[eoslog.Store]:
    """A store with a topic of a few records."""
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("t")
        with recorder.producer(store.producer()) as producer:
            for number in range(RECORDS):
                producer.send("t", b"v%d" % number, partition=0)
        yield store


@pytest.fixture
def consumer(store: eoslog.Store, recorder: Recorder) -> Iterator[RecordedConsumer]:
    """One that read everything."""
    with recorder.consumer(store.consumer("g")) as consumer:
        consumer.assign([WHERE])
        assert len(consumer.poll(0)) == RECORDS
        yield consumer


@pytest.fixture
def producer(store: eoslog.Store, recorder: Recorder) -> Iterator[RecordedProducer]:
    """One in a transaction, which is committed."""
    with recorder.producer(store.producer(transactional_id="x")) as producer:
        producer.init_transactions()
        with producer.transaction():
            yield producer


def lines_of(history: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, history.read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def offsets(consumer: RecordedConsumer) -> list[int]:
    return [record.offset for record in consumer.poll(0)]


@pytest.mark.parametrize("offset", [RECORDS + 1, 100, 1 << 50])
def test_a_seek_behind_the_end_is_to_nobody_knows_where(
    consumer: RecordedConsumer, history: Path, offset: int
) -> None:
    consumer.seek(WHERE, offset)
    assert lines_of(history, "seek")[-1]["positions"] == {"t-0": None}
    assert offsets(consumer) == list(range(RECORDS))  # It was reset to the beginning.
    assert offsets(consumer) == []


@pytest.mark.parametrize("offset", [0, 2, RECORDS])
def test_a_seek_within_the_log_is_to_its_offset(
    consumer: RecordedConsumer, history: Path, offset: int
) -> None:
    consumer.seek(WHERE, offset)
    assert lines_of(history, "seek")[-1]["positions"] == {"t-0": offset}
    assert offsets(consumer) == list(range(offset, RECORDS))


def test_a_consumer_takes_numbers_of_numpy(
    store: eoslog.Store, consumer: RecordedConsumer, history: Path
) -> None:
    zero = TopicPartition("t", np.int64(0))
    consumer.seek(zero, np.int64(2))
    assert offsets(consumer) == list(range(2, RECORDS))
    consumer.commit({zero: np.int64(4)})
    consumer.commit({WHERE: OffsetAndMetadata(np.int64(5), "five")})
    assert consumer.committed([WHERE]) == {WHERE: 5}
    assert [line["offsets"] for line in lines_of(history, "offsets")[1::2]] == [
        {"t-0": 4},
        {"t-0": 5},
    ]
    assert consumer.consumer.committed_metadata(WHERE) == OffsetAndMetadata(5, "five")


@pytest.mark.parametrize("offset", WRONG)
def test_a_consumer_refuses_other_offsets_and_records_nothing(
    consumer: RecordedConsumer, history: Path, offset: Any
) -> None:
    before = history.read_bytes()
    for call in (
        lambda: consumer.seek(WHERE, offset),
        lambda: consumer.commit({WHERE: offset}),
        lambda: consumer.commit([offset]),
        lambda: consumer.seek(TopicPartition("t", True), 0),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
    assert history.read_bytes() == before
    assert offsets(consumer) == []


def test_a_producer_takes_numbers_of_numpy(producer: RecordedProducer, history: Path) -> None:
    zero: Any = np.int64(0)
    producer.send("t", b"sent", partition=zero)
    producer.append("t", zero, [b"appended"])
    producer.send_offsets_to_transaction({TopicPartition("t", zero): np.int64(3)}, "g")
    producer.send_offsets_to_transaction({WHERE: OffsetAndMetadata(4, "four")}, "g")
    assert [line["offsets"]["t-0"] for line in lines_of(history, "offsets")] == [3, 3, 4, 4]
    assert {line["partition"] for line in lines_of(history, "send")} == {0}


@pytest.mark.parametrize("offset", WRONG)
def test_a_producer_refuses_other_offsets_and_records_nothing(
    producer: RecordedProducer, history: Path, offset: Any
) -> None:
    before = history.read_bytes()
    for call in (
        lambda: producer.send_offsets_to_transaction({WHERE: offset}, "g"),
        lambda: producer.send_offsets_to_transaction([offset], "g"),
        lambda: producer.send("t", b"one", partition=True),
        lambda: producer.append("t", True, [b"one"]),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
    assert history.read_bytes() == before


@pytest.mark.parametrize("partition", [-1, 1 << 31])
def test_a_partition_that_cannot_be_is_not_named(
    store: eoslog.Store, recorder: Recorder, history: Path, partition: int
) -> None:
    producer = recorder.producer(store.producer())
    for call in (
        lambda: producer.send("t", b"one", partition=partition),
        lambda: producer.append("t", partition, [b"one"]),
    ):
        with pytest.raises(UnknownTopicOrPartitionError):
            call()
        assert lines_of(history, "send")[-1]["partition"] is None
    producer.close()


def test_keys_are_appended_without_values(producer: RecordedProducer, history: Path) -> None:
    producer.append("t", 0, keys=[b"gone", b"too"])
    producer.append("t", 0, keys=np.array([b"three"]))
    assert [line["values"] for line in lines_of(history, "send")[-4::2]] == [
        ["gone", "too"],
        ["three"],
    ]
    with pytest.raises(ValueError, match="zip"):
        producer.append("t", 0, values=[], keys=[b"one"])


def test_pauses_and_reports_are_those_of_the_clients(
    store: eoslog.Store, recorder: Recorder, consumer: RecordedConsumer
) -> None:
    told: list[Any] = []
    consumer.pause([WHERE])
    with recorder.producer(store.producer()) as producer:
        producer.send("t", b"late", None, 0, on_delivery=lambda error, place: told.append(place))
    assert [place.offset for place in told] == [RECORDS]
    assert (consumer.poll(0), consumer.paused()) == ([], [WHERE])
    consumer.resume([WHERE])
    assert [record.value for record in consumer.poll(0)] == [b"late"]
