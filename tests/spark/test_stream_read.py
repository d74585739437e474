"""`spark.readStream.format("eoslog")`: each record in one micro-batch, however often it is run."""

import json
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from eoslog.spark.failure_reason import reason_of
from eoslog.store.store import engine_of

pytest.importorskip("pyspark")

ORDERS = [TopicPartition("orders", number) for number in range(4)]
WAIT_S = 120


@pytest.fixture
def store(store_path):
    with eoslog.open(store_path) as store:
        yield store


class Query:
    """A query with a checkpoint, which keeps the numbers of each micro-batch it runs."""

    def __init__(self, spark, store_path, checkpoint):
        self.spark, self.store_path, self.checkpoint = spark, store_path, checkpoint
        self.batches = {}
        self.progress = []
        self.fails_in = None
        self.then = None

    def take(self, frame, batch_id):
        rows = frame.select("value").collect()
        self.batches[batch_id] = sorted(int(row.value) for row in rows)
        if batch_id == self.fails_in:
            raise RuntimeError("fails on purpose")
        if self.then is not None:
            self.then()
            self.then = None

    def run(self, trigger=None, then=None, **options):
        """Reads topic `orders` until nothing is left; the micro-batches of this run.

        With a `trigger` until something was read; if `then` is given, until it fails: that is
        called within the first micro-batch, when the query does not look at the store.
        """
        self.batches = {}
        self.then = then
        options = {"subscribe": "orders", "store": str(self.store_path)} | options
        options = {name: value for name, value in options.items() if value is not None}
        query = (
            self.spark.readStream.format("eoslog")
            .options(**options)
            .load()
            .writeStream.foreachBatch(self.take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        try:
            if trigger is None or then is not None:
                assert query.awaitTermination(WAIT_S)
            else:
                wait_until(lambda: has_read(query))
                if query.exception() is not None:
                    raise query.exception()
        finally:
            self.progress = [json.loads(one.json) for one in query.recentProgress]
            query.stop()
        return self.batches


def has_read(query):
    """Whether it has read something, or failed."""
    return query.exception() or any(one["numInputRows"] for one in query.recentProgress)


def wait_until(done):
    deadline_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.fixture
def query(spark, store_path, tmp_path):
    from eoslog.spark.data_source import EoslogDataSource

    spark.dataSource.register(EoslogDataSource)
    return Query(spark, store_path, tmp_path / "checkpoint")


def fill(store, first, upper_bound, partition=0, topic="orders"):
    values = [b"%d" % number for number in range(first, upper_bound)]
    store.producer().append(topic, partition, values)


def all_of(batches):
    return sorted(number for found in batches.values() for number in found)


# With Spark.


@pytest.mark.long
def test_a_query_goes_on_where_it_stopped_within_its_limit(store, query):
    fill(store, 0, 60)
    fill(store, 60, 90, partition=1)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    batches = query.run(**options)
    assert [len(found) for found in batches.values()] == [30, 30, 30]
    assert all_of(batches) == list(range(90))
    # As Spark's Kafka source writes it.
    ends = query.progress[-1]["sources"][0]["endOffset"]
    ends = json.loads(ends) if isinstance(ends, str) else ends
    assert ends["orders"] == {"0": 60, "1": 30, "2": 0, "3": 0}
    assert query.run(**options) == {}
    fill(store, 90, 95, partition=2)
    assert query.run(**options) == {3: [90, 91, 92, 93, 94]}


@pytest.mark.long
def test_latest_is_the_end_at_the_first_start_even_if_nothing_came(store, query):
    fill(store, 0, 10)
    assert all_of(query.run()) == []
    fill(store, 10, 15)
    assert all_of(query.run()) == [10, 11, 12, 13, 14]


@pytest.mark.long
def test_a_first_batch_that_is_run_again_has_the_records_it_had(store, query):
    fill(store, 0, 5)
    fill(store, 5, 10, partition=1)
    options = {"startingOffsets": '{"orders": {"0": -1, "1": -2, "2": -1, "3": -1}}'}
    query.fails_in = 0
    with pytest.raises(Exception, match="fails on purpose"):
        query.run(**options)
    assert query.batches == {0: [5, 6, 7, 8, 9]}
    # "latest" is another offset by now.
    fill(store, 10, 20)
    query.fails_in = None
    assert query.run(**options) == {0: [5, 6, 7, 8, 9], 1: list(range(10, 20))}


@pytest.mark.long
def test_what_is_not_committed_waits_and_what_was_aborted_never_comes(store, query):
    fill(store, 0, 3)
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.append("orders", 0, [b"3", b"4"])
        producer.append("orders", 1, [b"5"])
        producer.flush()
        fill(store, 6, 8)
        assert query.run(startingOffsets="earliest") == {0: [0, 1, 2]}
        producer.commit_transaction()
        producer.begin_transaction()
        producer.append("orders", 0, [b"-1"])
        producer.abort_transaction()
    assert query.run() == {1: [3, 4, 5, 6, 7]}


@pytest.mark.long
def test_a_stopped_query_of_a_pattern_finds_topics_made_later(store, query):
    options = {"subscribe": None, "subscribePattern": "ord.*|late", "startingOffsets": "latest"}
    assert all_of(query.run(**options)) == []
    store.create_topic("late", partitions=2)
    fill(store, 0, 5, partition=1, topic="late")
    assert all_of(query.run(**options)) == [0, 1, 2, 3, 4]


@pytest.mark.long
def test_a_topic_that_was_made_again_fails_the_query_unless_told(store, query):
    fill(store, 0, 10)
    assert all_of(query.run(startingOffsets="earliest")) == list(range(10))
    store.delete_topic("orders")
    store.create_topic("orders", partitions=4)
    fill(store, 20, 25)
    with pytest.raises(Exception, match="DataLoss") as failed:
        query.run()
    assert "orders: deleted and made again since it was read" in reason_of(failed.value)
    # Also once it is longer than it was.
    fill(store, 25, 40)
    with pytest.raises(Exception, match="DataLoss") as failed:
        query.run()
    assert "orders: deleted and made again since it was read" in reason_of(failed.value)
    assert all_of(query.run(failOnDataLoss="false")) == list(range(20, 40))
    fill(store, 40, 42)
    assert all_of(query.run()) == [40, 41]


@pytest.mark.long
def test_a_topic_that_is_made_again_under_a_running_query_fails_it(store, query):
    fill(store, 0, 10)
    trigger = {"processingTime": "100 milliseconds"}

    def replace():
        store.delete_topic("orders")
        store.create_topic("orders", partitions=4)
        fill(store, 20, 40)

    with pytest.raises(Exception, match="DataLoss") as failed:
        query.run(trigger, startingOffsets="earliest", then=replace)
    assert "orders: deleted and made again since it was read" in reason_of(failed.value)


def test_a_running_query_gets_what_is_appended(store, query):
    fill(store, 0, 10)
    trigger = {"processingTime": "100 milliseconds"}
    options = {"startingOffsets": "earliest", "minPartitions": "3"}
    assert all_of(query.run(trigger, **options)) == list(range(10))
    store.alter_topic("orders", partitions=8)
    fill(store, 10, 12, partition=7)
    assert all_of(query.run(trigger, **options)) == [10, 11]


# The planner's side alone.


@pytest.fixture
def reader(store, monkeypatch):
    """Makes a reader of options, which is given the store that the test has open."""
    from eoslog.spark.source import stream_reader
    from eoslog.spark.source.read_schema import schema_of

    @contextmanager
    def lent(path):
        yield store

    monkeypatch.setattr(stream_reader, "lent_store", lent)

    def make(**options):
        options = {"store": str(store.path), "subscribe": "orders"} | options
        options = {name: value for name, value in options.items() if value is not None}
        return stream_reader.StreamReader(options, schema_of(options))

    return make


def offsets(*ends):
    return {"orders": {str(number): end for number, end in enumerate(ends)}}


def planned(found):
    return [(one.wanted.where.partition, one.wanted.first, one.wanted.upper_bound) for one in found]


def latest_with_ids(reader, start):
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def latest(reader, start):
    found = latest_with_ids(reader, start)
    return {name: numbers for name, numbers in found.items() if not name.endswith(" (id)")}


def test_the_first_end_says_where_it_began_and_the_next_does_not(store, reader):
    fill(store, 0, 10)
    one = reader()
    start = one.initialOffset()
    assert start == offsets(10, 0, 0, 0)
    first = latest(one, start)
    assert first == offsets(10, 0, 0, 0) | {"orders (start)": start["orders"]}
    assert one.partitions(start, first) == []
    assert latest(one, first) == first
    fill(store, 10, 13)
    second = latest(one, first)
    assert second == offsets(13, 0, 0, 0)
    assert planned(one.partitions(first, second)) == [(0, 10, 13)]
    # Another start asks for the initial offsets anew, and gets others.
    again = reader()
    assert again.initialOffset() == offsets(13, 0, 0, 0)
    assert again.partitions(offsets(13, 0, 0, 0), first) == []
    assert planned(again.partitions(first, second)) == [(0, 10, 13)]


def test_a_start_that_is_the_same_each_time_needs_no_empty_batch(store, reader):
    one = reader(startingOffsets="earliest")
    start = one.initialOffset()
    assert latest(one, start) == start
    fill(store, 0, 3)
    assert latest(one, start) == offsets(3, 0, 0, 0) | {"orders (start)": start["orders"]}


def test_a_query_that_began_without_topics_reads_later_ones_from_their_beginning(store, reader):
    one = reader(subscribe=None, subscribePattern="new.*")
    start = one.initialOffset()
    first = latest(one, start)
    assert (start, first) == ({}, {" (start)": {}})
    store.create_topic("news")
    fill(store, 0, 4, topic="news")
    later = reader(subscribe=None, subscribePattern="new.*")
    second = latest(later, first)
    assert second == {"news": {"0": 4}}
    assert planned(later.partitions(first, second)) == [(0, 0, 4)]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_partitions_that_are_added_are_read_from_their_beginning(store, reader, starting):
    fill(store, 0, 3)
    one = reader(startingOffsets=starting)
    first = latest(one, one.initialOffset())
    store.alter_topic("orders", partitions=6)
    fill(store, 3, 7, partition=5)
    second = latest(one, first)
    assert second["orders"]["5"] == 4
    assert [part for part in planned(one.partitions(first, second)) if part[0] > 3] == [(5, 0, 4)]


def test_few_records_wait_until_there_are_enough_or_the_delay_is_over(store, reader, monkeypatch):
    from eoslog.spark.source import stream_reader

    now_ns = 0
    monkeypatch.setattr(stream_reader, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    fill(store, 0, 2)
    one = reader(startingOffsets="earliest", minOffsetsPerTrigger="5", maxOffsetsPerTrigger="6")
    start = latest(one, one.initialOffset())  # The first does not wait.
    assert start["orders"]["0"] == 2
    fill(store, 2, 6)
    assert latest(one, start) == start
    fill(store, 6, 20)
    end = latest(one, start)
    assert end == offsets(8, 0, 0, 0)
    brief = reader(minOffsetsPerTrigger="1000", maxTriggerDelay="50ms")
    end = latest(brief, end)
    assert end == offsets(20, 0, 0, 0)
    fill(store, 20, 21)
    now_ns += 49_000_000
    assert latest(brief, end) == end
    now_ns += 1_000_000
    assert latest(brief, end) == offsets(21, 0, 0, 0)


def test_a_run_of_what_is_available_neither_waits_nor_goes_beyond(store, reader):
    fill(store, 0, 7)
    one = reader(startingOffsets="earliest", minOffsetsPerTrigger="4", maxOffsetsPerTrigger="5")
    start = one.initialOffset()
    one.prepareForTriggerAvailableNow()
    fill(store, 7, 100)
    store.create_topic("later")
    first = latest(one, start)
    assert first["orders"]["0"] == 5
    second = latest(one, first)
    assert second == offsets(7, 0, 0, 0)
    assert latest(one, second) == second
    assert one.reportLatestOffset() == offsets(7, 0, 0, 0)


def test_all_that_is_there_is_given_if_spark_asks_for_it(store, reader):
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    fill(store, 0, 50)
    one = reader(startingOffsets="earliest", maxOffsetsPerTrigger="5")
    assert one.latestOffset(one.initialOffset(), ReadAllAvailable())["orders"]["0"] == 50


def test_a_micro_batch_cuts_no_transaction(store, reader):
    one = reader(startingOffsets="earliest")
    with (
        store.producer(transactional_id="open") as waits,
        store.producer(transactional_id="t") as producer,
    ):
        for each in (waits, producer):
            each.init_transactions()
            each.begin_transaction()
        waits.append("orders", 0, [b"0"])
        waits.flush()
        producer.append("orders", 0, [b"1"])
        producer.append("orders", 1, [b"1"])
        producer.commit_transaction()
        # Partition 1 has it whole, and partition 0 holds it back.
        start = one.initialOffset()
        assert latest(one, start) == start
        waits.commit_transaction()
    end = latest(one, start)
    assert (end["orders"]["0"], end["orders"]["1"]) == (4, 2)


def test_lost_records_are_an_error_or_left_out(store, reader):
    fill(store, 0, 10)
    partition = engine_of(store).partition("orders", 0)
    partition.roll()
    fill(store, 10, 15)
    partition.delete_segments(10)
    start, end = offsets(3, 0, 0, 0), offsets(15, 0, 0, 0)
    for call in (lambda one: latest(one, start), lambda one: one.partitions(start, end)):
        with pytest.raises(OffsetOutOfRangeError, match="from 3 on, and its log begins at 10"):
            call(reader())
    loose = reader(failOnDataLoss="false")
    assert latest(loose, start) == end
    assert planned(loose.partitions(start, end)) == [(0, 10, 15)]


def test_a_topic_made_again_is_read_from_its_beginning_if_told(store, reader):
    fill(store, 0, 8)
    start = offsets(100, 0, 0, 0)
    with pytest.raises(OffsetOutOfRangeError, match="up to 100, and its log ended at 8"):
        latest(reader(), start)
    loose = reader(failOnDataLoss="false")
    end = latest(loose, start)
    assert end == offsets(8, 0, 0, 0)
    fill(store, 8, 200)
    # Also when it has grown beyond the old offset meanwhile.
    assert planned(loose.partitions(start, end)) == [(0, 0, 8)]


def test_a_store_that_was_restored_from_a_copy_gives_nothing_again(store, reader):
    """Its log grows from an earlier end on, and is the same topic's."""
    fill(store, 0, 8)
    end = offsets(10, 0, 0, 0) | {"orders (id)": {store.topics()["orders"].topic_id: 0}}
    end |= {"orders (start)": {"0": 0}}
    with pytest.raises(OffsetOutOfRangeError, match="up to 10, and its log ended at 8"):
        latest(reader(), end)
    loose = reader(failOnDataLoss="false")
    for upper_bound in (8, 9, 10):
        assert latest_with_ids(loose, end) == end
        assert loose.partitions(end, end) == []
        fill(store, upper_bound, upper_bound + 1)
    then = latest_with_ids(loose, end)
    assert planned(loose.partitions(end, then)) == [(0, 10, 11)]
    assert planned(reader().partitions(end, then)) == [(0, 10, 11)]


def make_again(store, upper_bound):
    store.delete_topic("orders")
    store.create_topic("orders", partitions=4)
    fill(store, 100, 100 + upper_bound)


@pytest.mark.parametrize("where", ["first", "later"])
def test_a_topic_made_again_before_a_run_of_what_is_available_began(store, reader, where):
    fill(store, 0, 10)
    begun = reader(startingOffsets="earliest")
    start = begun.initialOffset()
    if where == "later":
        start = latest_with_ids(begun, start)
        fill(store, 10, 12)
    strict, loose = reader(startingOffsets="earliest"), reader(failOnDataLoss="false")
    for one in (strict, loose):
        one.prepareForTriggerAvailableNow()
    make_again(store, 3)
    with pytest.raises(OffsetOutOfRangeError, match="orders: deleted and made again"):
        latest(strict, start)
    # The new topic begins after what was available.
    end = latest_with_ids(loose, start)
    assert end["orders"] == dict.fromkeys("0123", 0)
    assert planned(loose.partitions(start, end)) == []
    later = reader()
    then = latest_with_ids(later, end)
    assert then["orders (id)"] == {store.topics()["orders"].topic_id: 0}
    assert planned(later.partitions(end, then)) == [(0, 0, 3)]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_topic_made_again_before_its_first_micro_batch(store, reader, starting):
    fill(store, 0, 10)
    options = {"startingOffsets": starting}
    strict, loose = reader(**options), reader(**options, failOnDataLoss="false")
    start, _ = loose.initialOffset(), strict.initialOffset()
    make_again(store, 3)
    with pytest.raises(OffsetOutOfRangeError, match="orders: deleted and made again"):
        latest(strict, start)
    end = latest_with_ids(loose, start)
    assert planned(loose.partitions(start, end)) == [(0, 0, 3)]


def test_a_topic_that_was_made_again_is_known_by_its_id(store, reader):
    """It may have as many records as the one before, or more: numbers tell nothing."""
    fill(store, 0, 8)
    one = reader(startingOffsets="earliest")
    start = one.initialOffset()
    first = latest_with_ids(one, start)
    assert first["orders (id)"] == {store.topics()["orders"].topic_id: 0}
    fill(store, 8, 9)
    second = latest_with_ids(one, first)
    store.delete_topic("orders")
    store.create_topic("orders", partitions=4)
    fill(store, 20, 40)
    for call in (
        lambda one: latest(one, first),
        lambda one: one.partitions(start, first),
        lambda one: one.partitions(first, second),
    ):
        with pytest.raises(OffsetOutOfRangeError, match="orders: deleted and made again"):
            call(reader())
    loose = reader(failOnDataLoss="false")
    # What the lost topic had is not read from the new one.
    assert loose.partitions(first, second) == []
    third = latest_with_ids(loose, second)
    assert planned(loose.partitions(second, third)) == [(0, 0, 20)]
    fill(store, 40, 41)
    assert planned(loose.partitions(third, latest_with_ids(reader(), third))) == [(0, 20, 21)]


def test_a_task_reads_no_other_topic_than_was_planned(store, reader):
    fill(store, 0, 8)
    one = reader(startingOffsets="earliest")
    start = one.initialOffset()
    (planned_one,) = one.partitions(start, latest_with_ids(one, start))
    store.delete_topic("orders")
    store.create_topic("orders", partitions=4)
    fill(store, 20, 40)
    store.close()
    with pytest.raises(OffsetOutOfRangeError, match="orders-0: the topic was deleted and made"):
        next(one.read(planned_one))
    assert list(reader(failOnDataLoss="false").read(planned_one)) == []


def test_a_deleted_topic_is_an_error_or_left_out(store, reader):
    store.create_topic("other")
    fill(store, 0, 3)
    start = {"orders": offsets(0, 0, 0, 0)["orders"], "other": {"0": 5}}
    end = {"orders": offsets(3, 0, 0, 0)["orders"], "other": {"0": 9}}
    store.delete_topic("other")
    both = {"subscribe": "orders,other"}
    for call in (lambda one: latest(one, start), lambda one: one.partitions(start, end)):
        with pytest.raises(OffsetOutOfRangeError, match="other-0: no longer in"):
            call(reader(**both))
    loose = reader(**both, failOnDataLoss="false")
    assert latest(loose, start) == offsets(3, 0, 0, 0)
    assert planned(loose.partitions(start, end)) == [(0, 0, 3)]
    # One that never was there is a mistake of the options.
    with pytest.raises(UnknownTopicOrPartitionError, match="has no other"):
        latest(reader(**both, failOnDataLoss="false"), offsets(0, 0, 0, 0))


def test_a_group_shows_how_far_the_query_got(store, query):
    store.producer().append("orders", 0, [b"1", b"2"])
    query.run(startingOffsets="earliest", **{"kafka.group.id": "progress"})
    store.producer().append("orders", 0, [b"3"])
    query.run(startingOffsets="earliest", **{"kafka.group.id": "progress"})
    # Spark reports a micro-batch when it plans the next one.
    assert store.groups()["progress"][ORDERS[0]].offset >= 2


def test_a_group_that_refuses_the_progress_does_not_stop_the_query(store, reader, caplog):
    store.producer().append("orders", 0, [b"1"])
    stream = reader(startingOffsets="earliest", **{"kafka.group.id": "members"})
    with store.consumer("members") as member:
        member.subscribe(["orders"])
        member.poll(timeout=0.0)
        end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        stream.commit(end)
        assert "group members does not show the progress" in caplog.text
    caplog.clear()
    stream.commit(end)
    assert caplog.text == ""
    assert store.groups()["members"][ORDERS[0]].offset == 1
