"""Retention by age: the time of the records decides, not that of their files."""

import os
import time

import pytest
from stores import values_of

from eoslog import TopicPartition
from eoslog.bindings.record_batch import BatchEncoder
from eoslog.bindings.segment_times import newest_timestamp
from eoslog.store.retention import OldestRecords, apply_retention
from eoslog.store.store import engine_of, parts_of

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
T0 = TopicPartition("t", 0)


def now_ms():
    return time.time_ns() // 1_000_000


def fill(store, timestamps, *, topic="t"):
    """Records of these times, two of them a segment."""
    partition = engine_of(store).partition(topic, 0)
    for timestamp_ms in timestamps:
        partition.append_columns([bytes(400)], timestamps=[timestamp_ms])
    return partition


def touch_all(partition, moment_ms):
    for path in partition.path.iterdir():
        os.utime(path, (moment_ms / 1000, moment_ms / 1000))


@pytest.fixture
def topic(open_store):
    """A store whose background thread leaves retention to the test, with small segments."""
    store = open_store()
    store.create_topic("t", config={"segment.bytes": 1024, "retention.ms": HOUR_MS})
    return store


def look(store, topic="t", oldest_records=None, limits=None, later_ms=0):
    """What retention does at its look; how many segments it deleted."""
    description = store.topics()[topic]
    config = {**parts_of(store).files.partitions.config_of(description), **(limits or {})}
    oldest_records = oldest_records or OldestRecords()
    where = TopicPartition(topic, 0)
    directory = parts_of(store).files.paths.partition(where)
    moment_ms = now_ms() + later_ms
    if not oldest_records.may_be_released(
        where, description.topic_id, directory, config, moment_ms
    ):
        return 0
    return apply_retention(
        engine_of(store).partition(*where), parts_of(store).files.names, config, moment_ms
    )


def reopen(store, open_store):
    store.close()
    return open_store()


# Which time counts.


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("files_are_of", ["now", "long ago", "the future"])
def test_expired_records_go_whatever_the_times_of_their_files(
    topic, open_store, opened, files_are_of
):
    partition = fill(topic, [now_ms() - 2 * HOUR_MS] * 10)
    moment_ms = {"now": now_ms(), "long ago": 1000, "the future": now_ms() + YEAR_MS}[files_are_of]
    store = topic if opened else reopen(topic, open_store)
    touch_all(partition, moment_ms)
    assert look(store) == 5
    assert values_of(store, "t") == []
    assert store.partition(*T0).log_end_offset == 10


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("young", [-1000, 0, YEAR_MS])
def test_young_records_stay_however_old_their_files_are(topic, open_store, opened, young):
    partition = fill(topic, [now_ms() + young] * 10)
    store = topic if opened else reopen(topic, open_store)
    touch_all(partition, 1000)
    assert look(store) == 0
    assert len(values_of(store, "t")) == 10


def test_a_partition_is_not_opened_before_something_is_due(topic, open_store):
    fill(topic, [now_ms()] * 10)
    topic.create_topic("empty", config={"retention.ms": 1})
    store = reopen(topic, open_store)
    assert [look(store, one) for one in ("t", "empty")] == [0, 0]
    assert parts_of(store).files.partitions.opened() == []


def test_the_newest_record_of_a_segment_decides_and_the_oldest_segment_comes_first(topic):
    old, young = now_ms() - 2 * HOUR_MS, now_ms()
    fill(topic, [old, old, old, young, old, old, old, old])
    assert look(topic) == 1
    assert topic.partition(*T0).log_start_offset == 2


def test_the_active_segment_goes_too_once_all_of_it_is_too_old(topic):
    fill(topic, [now_ms() - 2 * HOUR_MS])
    assert look(topic) == 1
    assert topic.partition(*T0).log_start_offset == 1
    assert look(topic) == 0  # The new one is empty.


def test_a_young_record_that_comes_during_the_look_stays(topic, monkeypatch):
    partition = fill(topic, [now_ms() - 2 * HOUR_MS] * 3)
    whole = partition.roll

    def roll():
        fill(topic, [now_ms()])
        return whole()

    monkeypatch.setattr(partition, "roll", roll)
    assert look(topic) == 1
    assert (partition.log_start_offset, len(values_of(topic, "t"))) == (2, 2)


# Records without a time.


def without_time(store, count):
    partition = engine_of(store).partition("t", 0)
    batch = BatchEncoder().encode_columns([bytes(400)], timestamp_ms=-1)
    for _ in range(count):
        partition.append_batch(batch)
    return partition


@pytest.mark.parametrize("opened", [True, False])
def test_a_segment_in_which_no_record_has_a_time_goes_by_its_files(topic, open_store, opened):
    partition = without_time(topic, 4)
    store = topic if opened else reopen(topic, open_store)
    assert look(store) == 0
    first = min(partition.path.glob("*.log"))
    os.utime(first, (1000, 1000))
    assert look(store) == 1
    assert store.partition(*T0).log_start_offset == 2


def test_one_record_with_a_time_is_enough(topic):
    partition = without_time(topic, 1)
    fill(topic, [now_ms(), now_ms()])
    touch_all(partition, 1000)
    assert look(topic) == 0


def test_a_file_time_is_not_remembered(topic):
    """A record that comes later may be older than the file."""
    oldest_records = OldestRecords()
    without_time(topic, 1)
    assert look(topic, oldest_records=oldest_records) == 0
    fill(topic, [now_ms() - 2 * HOUR_MS])
    assert look(topic, oldest_records=oldest_records) == 1


# The time index is only where to look.


def damaged(path, way, timestamp_ms):
    raw = path.read_bytes()
    if way == "gone":
        path.unlink()
    elif way == "empty":
        path.write_bytes(b"")
    elif way == "no last entry":
        path.write_bytes(raw[:-12])
    elif way == "another time":
        path.write_bytes(raw[:-12] + timestamp_ms.to_bytes(8, "big") + raw[-4:])
    elif way == "another offset":
        path.write_bytes(raw[:-4] + (1 << 20).to_bytes(4, "big"))
    elif way == "zeros behind":
        path.write_bytes(raw + bytes(24))
    elif way == "torn":
        path.write_bytes(raw[:-5])


WAYS = ["gone", "empty", "no last entry", "another time", "another offset", "zeros behind", "torn"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("opened", [True, False])
def test_a_wrong_time_index_neither_deletes_young_records_nor_keeps_old_ones(
    topic, open_store, opened, way
):
    old, young = now_ms() - 2 * HOUR_MS, now_ms() - 1000
    topic.create_topic("u", config={"segment.bytes": 1024, "retention.ms": HOUR_MS})
    for name, time_ms, wrong_ms in (("t", old, young), ("u", young, old)):
        partition = fill(topic, [time_ms] * 5, topic=name)
        if opened:
            for path in partition.path.glob("*.timeindex"):
                damaged(path, way, wrong_ms)
    store = topic
    if not opened:
        store = reopen(topic, open_store)
        for name, wrong_ms in (("t", young), ("u", old)):
            for path in (
                parts_of(store).files.paths.partition(TopicPartition(name, 0)).glob("*.timeindex")
            ):
                damaged(path, way, wrong_ms)
    assert [look(store, name) for name in ("t", "u")] == [3, 0]
    assert len(values_of(store, "u")) == 5


@pytest.mark.parametrize("way", ["gone", *WAYS[3:5]])
def test_a_damaged_offset_index_hides_no_record(topic, way):
    partition = fill(topic, [now_ms(), now_ms() - 2 * HOUR_MS, now_ms()])
    partition.append_columns([b"x"], timestamps=[1])
    path = min(partition.path.glob("*.index"))
    path.write_bytes(bytes(range(64)))
    if way == "gone":
        path.unlink()
    assert newest_timestamp(str(path.with_suffix(".log"))) > now_ms() - HOUR_MS


@pytest.mark.parametrize("order", ["rising", "falling", "peak in the middle"])
@pytest.mark.parametrize("interval", [0, 100, 4096])
@pytest.mark.parametrize("entries", [None, 0, 1, 3])
def test_the_newest_time_of_a_file_whatever_its_index_holds(open_store, order, interval, entries):
    store = open_store()
    store.create_topic("t", config={"index.interval.bytes": interval})
    times = list(range(1000, 1040))
    if order == "falling":
        times.reverse()
    elif order != "rising":
        times = times[:20] + times[:-21:-1]
    partition = fill(store, times)
    partition.roll()
    path = min(partition.path.glob("*.log"))
    index = path.with_suffix(".timeindex")
    if entries is not None:
        index.write_bytes(index.read_bytes()[: 12 * entries])
    assert newest_timestamp(str(path)) == max(times)


def test_the_newest_time_of_an_active_segment_of_which_no_index_is_written(open_store):
    store = open_store()
    store.create_topic("t")
    partition = fill(store, [1000, 3000, 2000])
    assert newest_timestamp(partition.segments()[0]["path"]) == 3000
    assert partition.segments()[0]["largest_timestamp_ms"] == 3000


def test_no_batch_has_no_time(open_store, tmp_path):
    store = open_store()
    store.create_topic("t")
    path = store.partition(*T0).segments()[0]["path"]
    assert newest_timestamp(path) is None
    assert newest_timestamp(str(tmp_path / f"{0:020d}.log")) is None


def test_behind_a_damaged_batch_the_time_index_tells(topic):
    partition = fill(topic, [now_ms() - 2 * HOUR_MS, now_ms(), now_ms()])
    path = min(partition.path.glob("*.log"))
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 61] = b"\xff" * 61
    path.write_bytes(raw)
    assert newest_timestamp(str(path)) > now_ms() - HOUR_MS
    assert look(topic) == 0


# What a look costs.


def test_a_partition_is_not_looked_at_before_its_oldest_segment_is_due(topic, monkeypatch):
    fill(topic, [now_ms() - HOUR_MS + 60_000] * 4)
    oldest_records = OldestRecords()
    assert look(topic, oldest_records=oldest_records) == 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: pytest.fail("looked"))
        assert look(topic, oldest_records=oldest_records) == 0
    assert look(topic, oldest_records=oldest_records, later_ms=120_000) == 2


def test_a_topic_of_an_earlier_name_is_not_remembered(topic):
    oldest_records = OldestRecords()
    fill(topic, [now_ms()] * 4)
    assert look(topic, oldest_records=oldest_records) == 0
    topic.delete_topic("t")
    topic.create_topic("t", config={"segment.bytes": 1024, "retention.ms": HOUR_MS})
    fill(topic, [now_ms() - 2 * HOUR_MS] * 4)
    assert look(topic, oldest_records=oldest_records) == 2
    oldest_records.forget_all_but([])
    assert oldest_records._newest_ms == {}


def test_size_is_looked_at_though_all_is_young(topic):
    oldest_records = OldestRecords()
    fill(topic, [now_ms()] * 10)
    assert look(topic, oldest_records=oldest_records) == 0
    assert look(topic, oldest_records=oldest_records, limits={"retention.bytes": 2000}) == 2
