"""poll_arrow: what is in the batches, and that nothing is copied on the way."""

import subprocess
import sys

import pyarrow as pa
import pytest

from eoslog import TopicPartition
from eoslog.columns import arrow
from eoslog.store.store import engine_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def read_all(consumer, **arguments):
    batches = []
    while (batch := consumer.poll_arrow(timeout=0, **arguments)).num_rows:
        batches.append(batch)
    return batches


@pytest.mark.parametrize("many", [2**31, 2**63 - 1, 2**63, 2**64 + 1])
def test_a_large_number_stands_for_all_there_are(store, many):
    store.create_topic("t")
    for _ in range(3):
        store.producer().append("t", 0, [b"value"] * 100)
    consumer = store.consumer()
    consumer.assign([T0])
    assert consumer.poll_arrow(timeout=0, max_bytes=many).num_rows == 300
    assert consumer.poll_arrow(timeout=0.01, max_bytes=many).num_rows == 0


def test_a_batch_tells_all_of_its_records(store):
    store.create_topic("t", partitions=2)
    store.producer().append(
        "t",
        1,
        [b"v0", None, b""],
        keys=[None, b"k1", b""],
        timestamps=[5, 6, 7],
        headers=[[("h", b"x"), ("h", None)], None, []],
    )
    consumer = store.consumer()
    consumer.assign([T0, T1])
    batch = consumer.poll_arrow()
    assert batch.schema.equals(arrow.SCHEMA)
    batch.validate(full=True)
    rows = batch.to_pylist()
    stamps = [row.pop("timestamp").timestamp() for row in rows]
    assert stamps == [0.005, 0.006, 0.007]
    headers = [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]
    assert rows == [
        {
            "topic": "t",
            "partition": 1,
            "offset": 0,
            "key": None,
            "value": b"v0",
            "headers": headers,
        },
        {"topic": "t", "partition": 1, "offset": 1, "key": b"k1", "value": None, "headers": []},
        {"topic": "t", "partition": 1, "offset": 2, "key": b"", "value": b"", "headers": []},
    ]
    assert consumer.position(T1) == 3


def test_without_headers_the_column_is_null(store):
    store.create_topic("t")
    store.producer().append("t", 0, [b"a", b"b"])
    consumer = store.consumer()
    consumer.assign([T0])
    assert consumer.poll_arrow().column("headers").null_count == 2


def test_an_empty_answer_has_the_same_columns(store):
    store.create_topic("t")
    consumer = store.consumer()
    consumer.assign([T0])
    batch = consumer.poll_arrow(timeout=0)
    assert (batch.num_rows, batch.schema.equals(arrow.SCHEMA)) == (0, True)
    pa.Table.from_batches([batch, batch])


def test_all_records_come_once_and_the_partitions_take_turns(store):
    store.create_topic("t", partitions=2)
    for number in range(2):
        for first in range(0, 1000, 100):
            values = [b"%0100d" % value for value in range(first, first + 100)]
            store.producer().append("t", number, values)
    consumer = store.consumer()
    consumer.assign([T0, T1])
    batches = read_all(consumer, max_bytes=25_000)
    assert len(batches) > 6
    turns = [batch.column("partition")[0].as_py() for batch in batches]
    assert turns[:4] == [0, 1, 0, 1]
    for number in range(2):
        found = [
            int(value)
            for batch, turn in zip(batches, turns, strict=True)
            if turn == number
            for value in batch.column("value").to_pylist()
        ]
        assert found == list(range(1000))


def test_poll_and_poll_arrow_share_positions(store):
    store.create_topic("t")
    store.producer().append("t", 0, [b"%d" % number for number in range(10)])
    consumer = store.consumer()
    consumer.assign([T0])
    assert len(consumer.poll(max_records=4)) == 4
    assert consumer.poll_arrow().column("offset").to_pylist() == [4, 5, 6, 7, 8, 9]


def test_the_columns_lie_over_the_fetched_memory(store):
    store.create_topic("t")
    store.producer().append("t", 0, [bytes(1000)] * 100)
    columns = engine_of(store).partition("t", 0).fetch_columns(0, 1 << 20)
    batch = arrow.record_batch(T0, columns)
    for name, fetched in (("value", columns.value_data), ("key", columns.key_data)):
        assert batch.column(name).buffers()[2].address == fetched.ctypes.data or not len(fetched)
    assert batch.column("offset").buffers()[1].address == columns.offsets.ctypes.data
    assert batch.column("timestamp").buffers()[1].address == columns.timestamps.ctypes.data


def test_a_batch_outlives_its_consumer_and_store(store):
    store.create_topic("t")
    store.producer().append("t", 0, [b"%d" % number for number in range(1000)])
    consumer = store.consumer()
    consumer.assign([T0])
    batch = consumer.poll_arrow()
    store.delete_topic("t")
    store.close()
    assert batch.column("value").to_pylist() == [b"%d" % number for number in range(1000)]


def test_columns_that_were_read_can_be_appended_again(store):
    store.create_topic("t")
    store.create_topic("u", partitions=3)
    store.producer().append(
        "t", 0, [b"a", None, b"c"], keys=[b"1", b"2", None], headers=[[("h", b"x")], [], []]
    )
    consumer = store.consumer()
    consumer.assign([T0])
    batch = consumer.poll_arrow()
    producer = store.producer()
    columns = [batch.column(name) for name in ("value", "key", "timestamp", "headers")]
    producer.append("u", 0, *columns)
    producer.append("u", None, *columns)
    records, _ = engine_of(store).partition("u", 0).fetch_records(0, 3, 1 << 20)
    assert [(one.value, one.key, one.headers) for one in records] == [
        (b"a", b"1", (("h", b"x"),)),
        (None, b"2", ()),
        (b"c", None, ()),
    ]


def test_without_pyarrow_the_error_says_what_to_install(store_path):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import eoslog\n"
        f"with eoslog.open({str(store_path)!r}, create=True) as store:\n"
        "    store.create_topic('t'); store.producer().append('t', 0, [b'x'])\n"
        "    c = store.consumer(); c.assign([('t', 0)])\n"
        "    assert len(c.poll()) == 1\n"
        "    c.seek(('t', 0), 0)\n"
        "    try: c.poll_arrow()\n"
        "    except eoslog.errors.MissingDependencyError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "eoslog[arrow]" in done.stdout


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_nulls_are_where_they_were(store, count):
    store.create_topic("t")
    values = [None if number % 3 == 1 else b"%d" % number for number in range(count)]
    store.producer().append("t", 0, values)
    consumer = store.consumer()
    consumer.assign([T0])
    assert [
        one for batch in read_all(consumer) for one in batch.column("value").to_pylist()
    ] == values
