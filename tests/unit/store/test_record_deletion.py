"""Records below an offset, or before a time, are deleted: where every reader begins then."""

import shutil

import pytest
from cli_calls import call
from harness.crew import Member
from staged_jobs import APP, TOPIC, stage_job
from stores import values_of

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import iter_batches
from eoslog.errors import OffsetOutOfRangeError, StoreFailedError, UnknownTopicOrPartitionError
from eoslog.fs import atomic_file
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, read_checkpoint
from eoslog.store.store import abandon, engine_of, parts_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COUNT = 60
# The second record of a batch, which is the first of its segment.
START = 31
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def store(open_store):
    """60 records of a name in batches of three, two batches a segment, a second between them."""
    opened = open_store("commit")
    opened.create_topic("t", partitions=2, config={"segment.bytes": 1024})
    with opened.producer(name="n") as producer:
        for first in range(0, COUNT, 3):
            producer.append(
                "t",
                0,
                [b"%0100d" % number for number in range(first, first + 3)],
                timestamps=[FIRST_MS + 1000 * number for number in range(first, first + 3)],
            )
    return opened


def bases(store, where=T0):
    return sorted(int(path.stem) for path in (store.path / str(where)).glob("*.log"))


def read(store, where, isolation="read_committed", **options):
    with store.consumer(isolation_level=isolation, **options) as consumer:
        consumer.assign([where])
        found = []
        while records := consumer.poll(timeout=0):
            found += [record.offset for record in records]
        return found


def assert_begins_at(store, start, count=COUNT):
    """Whatever reads the partition."""
    expected = list(range(start, count))
    partition = store.partition(*T0)
    assert partition.log_start_offset == start
    for isolation in ("read_committed", "read_uncommitted"):
        assert read(store, T0, isolation) == expected
    with store.consumer() as consumer:
        assert consumer.beginning_offsets([T0]) == {T0: start}
        assert consumer.offsets_for_times({T0: 0})[T0].offset == start
        consumer.assign([T0])
        table = consumer.poll_arrow(timeout=0, max_bytes=1 << 20)
        assert table["offset"].to_pylist() == expected[: len(table["offset"])]
        consumer.seek_to_beginning(T0)
        assert consumer.lag(T0) == len(expected)
        assert next(iter(consumer)).offset == start
        consumer.seek(T0, max(0, start - 1))
        assert consumer.poll(timeout=0)[0].offset == start
    assert partition.offset_for_timestamp(0)[0] == start
    with pytest.raises(OffsetOutOfRangeError):
        partition.read(start - 1)
    # Whole batches, as for any offset.
    first = iter_batches(partition.read(start))[0]
    assert first.base_offset <= start <= first.last_offset
    assert store.snapshot(["t"])[T0] == count
    assert store.producer(name="n").next_sequence("t", 0) == COUNT
    assert [int(value) for value in values_of(store, "t")] == expected
    assert store.verify() == []


def test_every_reader_begins_there(store):
    assert store.delete_records({T0: START}) == {T0: START}
    assert_begins_at(store, START)


@pytest.mark.parametrize("lost", ["nothing", "lmdb", "snapshots", "page"])
@pytest.mark.parametrize("stopped", ["closed", "killed"])
def test_every_reader_begins_there_after_reopening(store, open_store, store_path, stopped, lost):
    store.delete_records({T0: START})
    store.close() if stopped == "closed" else abandon(store)
    if lost == "lmdb":
        (store_path / "state/lmdb/data.mdb").unlink()
    elif lost == "page":
        shutil.rmtree(store_path / "state/control")
    elif lost == "snapshots":
        for path in store_path.glob("t-*/*.snapshot"):
            path.unlink()
    again = open_store("commit")
    assert_begins_at(again, START)
    again.delete_records({T0: START + 1})
    assert_begins_at(again, START + 1)


def test_another_process_begins_there_at_once(store, store_path):
    with Member() as other:
        other.run(
            "import eoslog\n"
            "store = eoslog.open(path)\n"
            "where = eoslog.TopicPartition('t', 0)\n"
            "consumer = store.consumer()\n"
            "consumer.assign([where])\n"
            "first = consumer.poll(timeout=0, max_records=1)\n",
            path=str(store_path),
        )
        store.delete_records({T0: START})
        assert other.value("consumer.poll(timeout=0, max_records=1)[0].offset") == START
        assert other.value("consumer.beginning_offsets([where])[where]") == START
        assert other.value("store.verify()") == []
        assert other.value("store.delete_records({where: 40})[where]") == 40
        assert_begins_at(store, 40)


def test_the_command_line_begins_there(store, store_path, tmp_path):
    store.delete_records({T0: START})
    store.close()
    shown = call("consume", "t", "--partition", "0", "--json", "--store", store_path).json_lines
    assert [one["offset"] for one in shown] == list(range(START, COUNT))
    described = call("topics", "describe", "t", "--json", "--store", store_path).json
    assert described["partitions"][0]["log_start_offset"] == START
    assert call("verify", "--json", "--store", store_path).json["records"] == COUNT - START
    # The files are shown as they are, as by Kafka's tool.
    dumped = call("dump", "--deep", store_path / "t-0" / f"{30:020d}.log").stdout
    assert "baseOffset: 30 " in dumped
    eoslog.export_kafka(store_path, tmp_path / "kafka")
    assert read_checkpoint(tmp_path / "kafka" / LOG_START_OFFSET)[T0] == START
    eoslog.import_kafka([tmp_path / "kafka"], tmp_path / "back")
    with eoslog.open(tmp_path / "back") as back:
        assert read(back, T0) == list(range(START, COUNT))


def test_a_consumer_below_goes_where_it_was_told(store):
    waiting = store.consumer(group="g", auto_offset_reset="none")
    waiting.assign([T0])
    waiting.seek(T0, 5)
    store.delete_records({T0: START})
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0.* \[31, 60\]"):
        waiting.poll(timeout=0)
    assert read(store, T0, auto_offset_reset="latest") == []


# What goes from the disk.


def test_whole_segments_go_and_the_rest_of_one_stays(store):
    assert bases(store) == list(range(0, COUNT, 6))
    sizes = {one["base_offset"]: one["size_bytes"] for one in store.partition(*T0).segments()}
    plan = store.deletable_records({T0: START})
    assert plan == {
        T0: eoslog.DeletableRecords(START, START, sum(sizes[base] for base in range(0, 30, 6)), 0)
    }
    assert bases(store)[0] == 0
    store.delete_records({T0: START})
    assert bases(store) == list(range(30, COUNT, 6))
    assert store.deletable_records({T0: START}) == {T0: eoslog.DeletableRecords(START, 0, 0, 0)}


def test_all_of_a_partition_goes_with_its_active_segment(store, open_store):
    size = store.partition(*T0).size_bytes
    assert store.deletable_records({T0: -1})[T0] == (COUNT, COUNT, size, 0)
    assert store.delete_records({T0: -1}) == {T0: COUNT}
    assert (bases(store), store.partition(*T0).size_bytes) == ([COUNT], 0)
    abandon(store)
    again = open_store("commit")
    assert again.producer(name="n").append("t", 0, [b"next"]).base_offset == COUNT
    assert again.verify() == []


def test_a_lower_offset_changes_nothing(store):
    store.delete_records({T0: START})
    before = {path: path.stat().st_mtime_ns for path in (store.path / "t-0").iterdir()}
    for offset in (0, START - 1, START):
        assert store.delete_records({T0: offset}) == {T0: START}
    assert {path: path.stat().st_mtime_ns for path in (store.path / "t-0").iterdir()} == before


@pytest.mark.parametrize("finishes", ["the next call", "retention", "the next opening"])
def test_segments_that_a_crash_left_go_later(store, open_store, monkeypatch, finishes):
    partition = engine_of(store).partition(*T0)
    whole = partition.write_start

    def dies(*arguments):
        whole(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(partition, "write_start", dies)
    with pytest.raises(KeyboardInterrupt):
        store.delete_records({T0: START})
    monkeypatch.undo()
    assert (partition.log_start_offset, bases(store)[0]) == (START, 0)
    if finishes == "the next call":
        assert store.delete_records({T0: 10}) == {T0: START}
    elif finishes == "retention":
        parts = parts_of(store)
        config = parts.files.partitions.config_of(store.topics()["t"])
        from eoslog.store.retention import apply_retention

        assert apply_retention(partition, parts.files.names, config, FIRST_MS) == 5
    else:
        abandon(store)
        store = open_store("commit")
        store.partition(*T0)
    assert bases(store)[0] == 30
    assert_begins_at(store, START)


def test_where_the_start_cannot_be_written_down_nothing_is_deleted(store, open_store, monkeypatch):
    def fail(_):
        raise StoreFailedError("no sync")

    with monkeypatch.context() as patched:
        patched.setattr(atomic_file, "put_in_place", lambda *_: fail(_))
        with pytest.raises(StoreFailedError):
            store.delete_records({T0: START})
    assert_begins_at(store, 0)
    assert bases(store)[0] == 0
    store.delete_records({T0: START})
    abandon(store)
    assert_begins_at(open_store("commit"), START)


# What may go.


def refused(store, offset, reason):
    with pytest.raises(OffsetOutOfRangeError, match=reason):
        # All is checked before anything changes.
        store.delete_records({T0: START, T1: offset})
    assert store.partition(*T0).log_start_offset == 0


def test_what_is_not_decided_stays(store):
    store.producer().append("t", 1, [b"x"] * 3)
    refused(store, 4, "t-1: records can be deleted up to offset 3, not 4: the log ends there")
    refused(store, -2, "t-1: offset -2 is below 0; -1 is the highest one, 3")
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.append("t", 1, [b"y"] * 3)
    reason = f"the transaction of producer id {producer.producer_id} is open from there on"
    refused(store, 4, f"up to offset 3, not 4: {reason}")
    producer.prepare_transaction()
    refused(store, 4, f"up to offset 3, not 4: {reason}")
    partition = engine_of(store).partition(*T1)
    partition.hold_readers(2)
    refused(store, 3, "up to offset 2, not 3: a staged job is being adopted from there on")
    assert store.delete_records({T1: -1}) == {T1: 2}
    partition.release_readers()
    assert store.delete_records({T1: -1}) == {T1: 3}
    producer.complete_transaction(None)
    assert store.delete_records({T1: -1}) == {T1: 7}
    assert store.verify() == []


def test_transactions_at_the_start_are_read_as_before(store, open_store):
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    for commits in (True, False, True):
        producer.begin_transaction()
        producer.append("t", 1, [b"%d" % commits] * 4)
        producer.commit_transaction() if commits else producer.abort_transaction()
    # Offsets 0 to 3, 5 to 8 (aborted), 10 to 13; a marker after each.
    for start, committed in ((2, [2, 3]), (4, []), (7, []), (9, [])):
        store.delete_records({T1: start})
        for _ in range(2):
            assert read(store, T1) == [*committed, *range(10, 14)]
            data = [*committed, *range(max(start, 5), 9), *range(10, 14)]
            assert read(store, T1, "read_uncommitted") == data
            assert store.deletable_records({T1: -1})[T1].record_count == len(data)
            aborted = store.partition(*T1).aborted_transactions(start, 14)
            assert [one.last_offset for one in aborted] == [9]
            assert store.snapshot() == {T0: COUNT, T1: 15}
            assert store.verify() == []
            abandon(store)
            store = open_store("commit")


def test_a_staged_job_of_which_a_part_is_deleted_stays_complete(store, open_store):
    store.create_topic(TOPIC, partitions=3)
    messages = stage_job(store.path, "run", range(90), 2)
    assert store.commit_staged(APP, 0, messages).committed
    ends = {where: store.partition(*where).log_end_offset for where in store.snapshot([TOPIC])}
    first, second, third = ends
    store.delete_records({first: 1, second: ends[second] - 1, third: -1})
    starts = {first: 1, second: ends[second] - 1, third: ends[third]}
    for stop in (lambda _: None, abandon, eoslog.Store.close):
        stop(store)
        store = open_store("commit") if store.closed else store
        assert store.application(APP).state == "complete"
        assert store.snapshot([TOPIC]) == ends
        assert {where: read(store, where) for where in ends} == {
            where: list(range(starts[where], ends[where])) for where in ends
        }
        assert store.verify() == []


# Producers.


@pytest.mark.parametrize("lost", ["nothing", "lmdb", "snapshots"])
@pytest.mark.parametrize("start", [2, 3])
def test_a_deleted_batch_that_is_sent_again_is_a_duplicate(store, open_store, start, lost):
    def append():
        return (
            engine_of(store)
            .partition(*T1)
            .append_columns([b"x"] * 3, producer_id=7, producer_epoch=0, base_sequence=0)
        )

    append()
    store.delete_records({T1: start})
    assert (append().duplicate, append().base_offset) == (True, 0)
    abandon(store)
    lost_files = {"lmdb": "state/lmdb/data.mdb", "snapshots": "t-1/*.snapshot"}.get(lost, "no/no")
    for path in list(store.path.glob(lost_files)):
        path.unlink()
    store = open_store("commit")
    assert (append().duplicate, append().base_offset) == (True, 0)
    assert store.partition(*T1).log_end_offset == 3


def test_rows_from_before_the_deletion_know_idle_producers(open_store, tmp_path):
    """An earlier copy of LMDB: the batches below the start, which are still there, are replayed."""
    store = open_store("commit", eoslog__producers__cached__max=2)
    store.create_topic("t")
    partition = engine_of(store).partition(*T0)

    def append(producer_id, sequence):
        return partition.append_columns(
            [b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )

    for producer_id in range(6):
        append(producer_id, 0)
    partition.producer_state.persist()
    shutil.copytree(store.path / "state/lmdb", tmp_path / "lmdb")
    for producer_id in range(6):
        append(producer_id, 1)
    store.delete_records({T0: -1 if partition.segment_count > 1 else 9})
    abandon(store)
    shutil.rmtree(store.path / "state/lmdb")
    shutil.copytree(tmp_path / "lmdb", store.path / "state/lmdb")
    store = open_store("commit", eoslog__producers__cached__max=2)
    partition = engine_of(store).partition(*T0)
    for producer_id in range(6):
        assert append(producer_id, 0).duplicate
        assert append(producer_id, 1).duplicate
    assert store.verify() == []


# Before a time.


@pytest.mark.parametrize(
    ("before_ms", "start"),
    [
        (0, 0),
        (FIRST_MS, 0),
        (FIRST_MS + 30_001, START),
        (FIRST_MS + 31_000, START),
        (FIRST_MS + 3_600_000, COUNT),
    ],
)
def test_what_is_older_than_a_time_goes(store, before_ms, start):
    plan = store.deletable_records(before_ms=before_ms, topics=["t"])
    assert (plan[T0].offset, plan[T0].record_count, plan[T0].older_left) == (start, start, 0)
    assert plan[T1] == (0, 0, 0, 0)
    assert store.delete_records(before_ms=before_ms, topics=["t"]) == {T0: start, T1: 0}
    assert read(store, T0) == list(range(start, COUNT))


def test_older_records_after_a_younger_one_stay_and_are_counted(store):
    store.create_topic("other")
    order = [5, 6, 9, 4, 8, 3]
    for topic in ("t", "other"):
        number = 1 if topic == "t" else 0
        store.producer().append(
            topic, number, [b"x"] * 6, timestamps=[FIRST_MS + one for one in order]
        )
    plan = store.deletable_records(before_ms=FIRST_MS + 8)
    assert plan[T1] == (2, 2, 0, 2)
    other = TopicPartition("other", 0)
    assert store.delete_records(before_ms=FIRST_MS + 8) == {T0: 1, T1: 2, other: 2}
    assert read(store, T1) == list(range(2, 6))


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({}, ValueError, "either offsets or before_ms"),
        ({"offsets": {T0: 1}, "before_ms": 1}, ValueError, "either offsets or before_ms"),
        ({"offsets": {T0: 1}, "topics": ["t"]}, ValueError, "topics goes with before_ms"),
        ({"offsets": [T0]}, TypeError, "offsets must map partitions to offsets, got list"),
        ({"offsets": {"t": 1}}, TypeError, "expected a TopicPartition, got 't'"),
        ({"offsets": {T0: 1.5}}, TypeError, "an offset must be an int, got float"),
        ({"before_ms": "today"}, TypeError, "before_ms must be an int, got str"),
        ({"before_ms": -1}, ValueError, "timestamp_ms -1 is outside"),
        ({"before_ms": 1, "topics": "t"}, TypeError, "topics must be a list of names"),
        ({"before_ms": 1, "topics": ["none"]}, UnknownTopicOrPartitionError, "no topic 'none'"),
        ({"offsets": {TopicPartition("t", 2): 1}}, UnknownTopicOrPartitionError, "not 2"),
        (
            {"offsets": {TopicPartition("__consumer_offsets", 0): 0}},
            UnknownTopicOrPartitionError,
            "__consumer_offsets",
        ),
    ],
)
@pytest.mark.parametrize("call_of", ["delete_records", "deletable_records"])
def test_wrong_calls(store, arguments, error, named, call_of):
    with pytest.raises(error, match=named):
        getattr(store, call_of)(**arguments)
    assert_begins_at(store, 0)
