"""Logs that Kafka compacted: what is left of them is read, and lost records are still told."""

import json
import logging
from itertools import islice

import pytest
from cli_calls import DONE, FAILED, call
from compacted_files import (
    BASE_MS,
    COMPACTED,
    COMPACTED_END,
    COMPACTED_HOLES,
    DERIVED,
    cleaned,
    create_topic_of_kafka,
    forget_all,
    records_in,
    replace_logs,
)
from harness.fork import in_child
from reference_model import batch_codec as codec

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import iter_batches
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.errors import CorruptRecordError, InvalidConfigError, OutOfOrderSequenceError
from eoslog.storage import legal_holes
from eoslog.storage.topics_file import read_entries, write_entries
from eoslog.store.store import abandon, engine_of, parts_of

WHERE = TopicPartition("t", 0)
RECORDS = [(one.offset, one.timestamp_ms, one.key, one.value) for one in records_in(COMPACTED)]
BELOW = COMPACTED_HOLES[-1][1]
LEVELS = ("read_committed", "read_uncommitted")


@pytest.fixture
def moved(store_path, open_store):
    """Opens a store into which a compacted log was moved."""

    def move(segments=COMPACTED, config=None, forget=True, **settings):
        with open_store() as store:
            create_topic_of_kafka(store, "t", config or {})
        replace_logs(store_path, segments, "t-0")
        if forget:
            forget_all(store_path)
        return open_store(**settings)

    return move


def log_files(store_path):
    return sorted((store_path / "t-0").glob("*.log"))


def fields(records):
    return [(one.offset, one.timestamp_ms, one.key, one.value) for one in records]


def read_all(store, level="read_uncommitted", **config):
    with store.consumer(isolation_level=level, config=config) as consumer:
        consumer.assign([WHERE])
        found = []
        for _ in range(1000):
            found += fields(consumer.poll(timeout=0))
            if consumer.position(WHERE) == consumer.end_offsets([WHERE])[WHERE]:
                return found
        raise AssertionError(f"it stands at {consumer.position(WHERE)}")


def is_sound(store):
    assert store.verify() == []
    return True


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_all_that_is_left_is_read_with_its_offsets(moved, open_store, level, reopened):
    store = moved()
    if reopened:
        assert is_sound(store)
        store.close()
        store = open_store()
    for max_records in (1, 2, 3, 500):
        assert read_all(store, level, **{"max.poll.records": max_records}) == RECORDS
    assert is_sound(store)


def test_every_way_to_read_gives_the_same(moved):
    store = moved()
    partition = engine_of(store).partition(*WHERE)
    assert (partition.log_start_offset, partition.log_end_offset) == (0, COMPACTED_END)
    offsets = [one[0] for one in RECORDS]
    with store.consumer() as consumer:
        consumer.assign([WHERE])
        found = []
        while (batch := consumer.poll_arrow()) is not None and batch.num_rows:
            found += batch.column("offset").to_pylist()
        assert found == offsets
        assert consumer.position(WHERE) == COMPACTED_END
        consumer.seek(WHERE, 0)
        assert [one.offset for one in islice(consumer, len(offsets))] == offsets
        assert consumer.position(WHERE) == COMPACTED_END
    data, position = b"", 0
    while piece := partition.read(position, 1):
        data += piece
        position = iter_batches(piece)[-1].last_offset + 1
    assert data == b"".join(COMPACTED[base] for base in sorted(COMPACTED))
    assert partition.log.scan_headers() == (8, len(RECORDS), COMPACTED_END)
    store.close()
    said = call("consume", "t", "--json", "--store", store.path)
    assert [one["offset"] for one in said.json_lines] == offsets


@pytest.mark.parametrize("offset", range(COMPACTED_END + 1))
def test_an_offset_in_a_hole_gives_the_next_record(moved_once, offset):
    expected = [one for one in RECORDS if one[0] >= offset]
    partition = engine_of(moved_once).partition(*WHERE)
    found, position = [], offset
    while position < COMPACTED_END:
        records, following = partition.fetch_records(position, 1, 1)
        assert following > position
        assert len(records) <= 1
        found += fields(records)
        position = following
    assert found == expected
    assert position == COMPACTED_END
    columns_found, position = [], offset
    while position < COMPACTED_END:
        columns = partition.fetch_columns(position, 1)
        assert columns.next_offset > position
        columns_found += columns.offsets.tolist()
        position = columns.next_offset
    assert columns_found == [one[0] for one in expected]


@pytest.fixture(scope="module")
def moved_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("moved") / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
    replace_logs(path, COMPACTED, "t-0")
    forget_all(path)
    with eoslog.open(path) as store:
        yield store


@pytest.mark.parametrize("asked", range(COMPACTED_END + 1))
def test_a_time_is_that_of_a_record_that_is_left(moved_once, asked):
    expected = next(((one[0], one[1]) for one in RECORDS if one[1] >= BASE_MS + asked), None)
    found = moved_once.partition(*WHERE).offset_for_timestamp(BASE_MS + asked)
    assert found == expected


@pytest.mark.parametrize("position", [0, 8, 9, 51, 52, 53, 58, 59, 61, 70, COMPACTED_END])
def test_lag_counts_the_records_that_are_left(moved_once, position):
    with moved_once.consumer() as consumer:
        consumer.assign([WHERE])
        consumer.seek(WHERE, position)
        assert consumer.lag(WHERE) == sum(one[0] >= position for one in RECORDS)


def test_another_process_reads_and_appends_too(moved, store_path):
    store = moved()
    assert read_all(store) == RECORDS

    def other():
        with eoslog.open(store_path, durability="process") as theirs:
            assert read_all(theirs) == RECORDS
            assert engine_of(theirs).partition(*WHERE).log.holes_below == BELOW
            engine_of(theirs).partition(*WHERE).append_columns([b"theirs"])
            assert is_sound(theirs)

    in_child(other)
    assert [one[0] for one in read_all(store)] == [*(one[0] for one in RECORDS), COMPACTED_END]
    assert engine_of(store).partition(*WHERE).log.holes_below == BELOW
    assert is_sound(store)


def test_a_log_is_followed_over_rolls_of_another_process(moved, store_path):
    store = moved(config={"segment.bytes": 1024})
    assert read_all(store) == RECORDS

    def other():
        with eoslog.open(store_path, durability="process") as theirs:
            partition = engine_of(theirs).partition(*WHERE)
            for index in range(8):
                partition.append_columns([b"%d" % index * 400])
            assert partition.segment_count > len(COMPACTED) + 2
            assert is_sound(theirs)

    in_child(other)
    ends = range(COMPACTED_END, COMPACTED_END + 8)
    assert [one[0] for one in read_all(store)] == [*(one[0] for one in RECORDS), *ends]
    engine_of(store).partition(*WHERE).append_columns([b"ours"])
    assert is_sound(store)


def test_a_process_that_has_the_store_open_learns_where_holes_are_legal(store_path, open_store):
    """The registry's note of one process reaches another that opens the partition later."""
    with open_store() as store:
        store.create_topic("t")
    replace_logs(store_path, COMPACTED, "t-0")
    forget_all(store_path)
    store = open_store()
    assert store.topics()["t"].holes_below == {}

    def other():
        with eoslog.open(store_path, durability="process") as theirs:
            assert read_all(theirs) == RECORDS

    in_child(other)
    assert read_all(store) == RECORDS
    assert store.topics()["t"].holes_below == {0: BELOW}


def test_it_is_said_once_which_offsets_are_missing(moved, open_store, store_path, caplog):
    """Nothing tells a log that was moved here from one of ours that lost records and all else."""
    store = moved()
    caplog.set_level(logging.WARNING)
    assert read_all(store) == RECORDS
    (said,) = [one for one in caplog.messages if one.startswith("t-0: ")]
    assert "no checkpoint, control page or row in LMDB knows this log" in said
    count = sum(upper_bound - first for first, upper_bound in COMPACTED_HOLES)
    assert "0 to 6, 12 to 19, 21 to 24, 28 to 43, 48 to 49 and 2 more " in said
    assert f"({count} offsets in 7 holes); those below offset {BELOW} " in said
    entry = json.loads((store_path / "state" / "topics.json").read_text())["topics"]["t"]
    assert entry["holes_below"] == {"0": BELOW}
    store.close()
    caplog.clear()
    assert is_sound(open_store())
    assert caplog.messages == []


def test_own_records_that_are_lost_above_are_still_told(moved, store_path, open_store):
    with moved() as store:
        for index in range(4):
            engine_of(store).partition(*WHERE).append_columns([b"own %d" % index])
    path = max((store_path / "t-0").glob("*.log"))
    data = path.read_bytes()
    third = iter_batches(data)[-2]
    path.write_bytes(
        data[: third.position_bytes] + data[third.position_bytes + third.batch_bytes :]
    )
    store = open_store()
    with pytest.raises(CorruptRecordError, match="offsets are missing"):
        read_all(store)
    assert [one["reason"] for one in store.verify() if one["path"].endswith(".log")] == [
        f"offsets {COMPACTED_END + 2} to {COMPACTED_END + 2} are missing"
    ]


@pytest.mark.parametrize("kept", ["control", "lmdb", *DERIVED])
def test_a_hole_in_a_log_that_anything_knows_is_damage(store_path, open_store, kept):
    """One thing that knows the log is enough, even if all else is lost with the records."""
    with open_store() as store:
        store.create_topic("t")
        with store.producer() as producer:
            for index in range(5):
                producer.append("t", 0, [b"%d" % index])
    path = store_path / "t-0" / f"{0:020d}.log"
    data = path.read_bytes()
    batches = iter_batches(data)
    path.write_bytes(data[: batches[2].position_bytes] + data[batches[3].position_bytes :])
    for path in (store_path / "t-0").glob("*"):
        if path.suffix in (".index", ".timeindex", ".snapshot"):
            path.unlink()
    saved = store_path.with_name("saved")
    source = store_path / "state" / kept if kept in ("control", "lmdb") else store_path / kept
    source.rename(saved)
    forget_all(store_path)
    saved.rename(source)
    with open_store() as store:
        with pytest.raises(CorruptRecordError, match="offsets are missing"):
            read_all(store)
        assert store.topics()["t"].holes_below == {}


@pytest.mark.parametrize("kept", [True, False])
def test_a_transaction_log_that_lmdb_knows_is_not_looked_at(
    store_path, open_store, monkeypatch, kept
):
    with open_store() as store:
        store.producer(transactional_id="x").init_transactions()
    saved, lmdb = store_path.with_name("saved"), store_path / "state" / "lmdb"
    lmdb.rename(saved)
    forget_all(store_path)
    if kept:
        saved.rename(lmdb)
    looked_at = set()
    monkeypatch.setattr(
        legal_holes.LegalHoles, "look", lambda _, topic, *__: looked_at.add(topic.name)
    )
    with open_store() as store:
        assert [one.transactional_id for one in store.transactions()] == ["x"]
    assert looked_at == (set() if kept else {TRANSACTION_STATE_TOPIC})


def test_a_log_without_holes_stays_strict(store_path, open_store):
    with open_store() as store:
        store.create_topic("t")
        engine_of(store).partition(*WHERE).append_columns([b"a"])
    forget_all(store_path)
    with open_store() as store:
        engine_of(store).partition(*WHERE).append_columns([b"b"])
        assert engine_of(store).partition(*WHERE).log.holes_below == 0
        assert store.topics()["t"].holes_below == {}
    assert "holes_below" not in (store_path / "state" / "topics.json").read_text()


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_segment_that_nobody_compacted_is_missed_in_a_compacted_topic(
    moved, open_store, store_path, policy
):
    with moved(config={"cleanup.policy": policy, "segment.bytes": 1024}) as store:
        assert read_all(store) == RECORDS
        assert is_sound(store)
        for number in range(10):
            engine_of(store).partition(*WHERE).append_columns([b"%d" % number * 400])
    own = [path for path in log_files(store_path) if int(path.stem) > COMPACTED_END]
    own[1].unlink()
    gone = f"offsets {int(own[1].stem)} to {int(own[2].stem) - 1} are missing"
    with open_store() as store:
        assert gone in {one["reason"] for one in store.verify()}
        with pytest.raises(CorruptRecordError, match="offsets are missing"):
            read_all(store)


def test_a_segment_is_missed_in_a_topic_that_was_never_compacted(open_store, store_path):
    with open_store() as store:
        settings = {"cleanup.policy": "compact", "segment.bytes": 1024}
        create_topic_of_kafka(store, "t", settings)
        for number in range(6):
            engine_of(store).partition(*WHERE).append_columns([b"%d" % number * 400])
    log_files(store_path)[1].unlink()
    with open_store() as store:
        assert [one["reason"] for one in store.verify()] == ["offsets 2 to 3 are missing"]


def test_a_kill_after_the_first_opening_loses_nothing(moved, open_store, caplog):
    """Recovery goes over the whole log again, now one that the store knows."""
    store = moved()
    engine_of(store).partition(*WHERE).append_columns([b"own"])
    abandon(store)
    for _ in range(2):
        store = open_store()
        found = read_all(store)
        assert found[:-1] == RECORDS
        assert found[-1][3] == b"own"
        assert engine_of(store).partition(*WHERE).cut_bytes == 0
        abandon(store)
    store = open_store()
    assert is_sound(store)


def test_a_first_opening_that_is_cut_short_begins_again(moved, open_store, monkeypatch):
    store = moved()
    with monkeypatch.context() as patched:
        patched.setattr(legal_holes.LegalHoles, "look", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.partition(*WHERE)
    abandon(store)
    store = open_store()
    assert read_all(store) == RECORDS
    assert store.topics()["t"].holes_below == {0: BELOW}
    assert is_sound(store)


def test_also_after_a_clean_stop_an_unknown_log_is_looked_at(moved, store_path, open_store):
    with moved() as store:
        assert is_sound(store)
    clean = (store_path / ".kafka_cleanshutdown").read_bytes()
    entries = read_entries(store_path / "state")
    forget_all(store_path)
    (store_path / ".kafka_cleanshutdown").write_bytes(clean)
    del entries["t"]["holes_below"]
    write_entries(store_path / "state", entries)
    store = open_store()
    assert read_all(store) == RECORDS
    assert store.topics()["t"].holes_below == {0: BELOW}


@pytest.mark.parametrize("base", COMPACTED)
def test_damage_is_no_hole(moved, store_path, open_store, base):
    """A batch that is not whole ends the log, and all is kept aside, as in a log of ours."""
    data = bytearray(COMPACTED[base])
    data[70] ^= 1
    store = moved({**COMPACTED, base: bytes(data)})
    expected = [one for one in RECORDS if one[0] < base]
    assert read_all(store) == expected
    assert engine_of(store).partition(*WHERE).cut_bytes > 0


def test_repair_finds_nothing_to_cut(moved, store_path):
    moved().close()
    forget_all(store_path)
    for options in (["--repair", "--dry-run"], ["--repair"], []):
        said = call("verify", *options, "--store", store_path)
        assert said.status == DONE, said.stdout
    # Now that the log is known, and after an unclean stop.
    (store_path / ".kafka_cleanshutdown").unlink()
    for options in (["--repair", "--dry-run"], ["--repair"], []):
        said = call("verify", *options, "--store", store_path)
        assert said.status == DONE, said.stdout


def test_repair_cuts_a_torn_end_alone(moved, store_path, open_store):
    moved().close()
    forget_all(store_path)
    path = max((store_path / "t-0").glob("*.log"))
    path.write_bytes(path.read_bytes() + cleaned(90, 2, [90])[:-3])
    said = call("verify", "--repair", "--store", store_path)
    assert said.status == DONE, said.stdout
    assert f"where offset {COMPACTED_END} would be" in said.stdout
    assert read_all(open_store()) == RECORDS


def test_dump_shows_it(moved, store_path):
    moved().close()
    paths = sorted((store_path / "t-0").glob("*.log"))
    said = call("dump", "--deep", *paths)
    assert said.status == DONE
    assert said.stdout.count("keySize") == len(RECORDS)
    assert "baseOffset: 80 lastOffset: 83 count: 0 baseSequence: 10 lastSequence: 13" in said.stdout
    assert "deleteHorizonMs: OptionalLong[" in said.stdout


def test_an_empty_batch_keeps_its_producers_sequence(moved, open_store):
    never = {"producer__id__expiration__ms": 2**62}  # The records are of 2023.
    store = moved(**never)
    for _ in range(2):
        partition = engine_of(store).partition(*WHERE)
        known = partition.producer(4)
        assert (known.producer_epoch, known.last_sequence) == (2, 13)
        with pytest.raises(OutOfOrderSequenceError):
            partition.append_batch(
                codec.simple_batch([b"x"], producer_id=4, producer_epoch=2, base_sequence=15)
            )
        retry = codec.simple_batch([b"x"] * 4, producer_id=4, producer_epoch=2, base_sequence=10)
        answer = partition.append_batch(retry)
        assert (answer.duplicate, answer.base_offset) == (True, 80)
        store.close()
        store = open_store(**never)
    following = codec.simple_batch([b"x"], producer_id=4, producer_epoch=2, base_sequence=14)
    assert store.partition(*WHERE).append_batch(following).base_offset == COMPACTED_END
    assert is_sound(store)


def test_an_empty_active_segment_behind_a_hole_is_the_end(moved, open_store):
    segments = {0: cleaned(0, 4, [0, 2]), 90: b""}
    store = moved(segments)
    for _ in range(2):
        assert [one[0] for one in read_all(store)] == [0, 2]
        partition = engine_of(store).partition(*WHERE)
        assert partition.log_end_offset == 90
        assert partition.fetch_records(4, 1, 1) == ([], 90)
        assert partition.fetch_columns(4, 1).next_offset == 90
        assert partition.offset_for_timestamp(BASE_MS + 3) is None
        assert is_sound(store)
        store.close()
        store = open_store()
    engine_of(store).partition(*WHERE).append_columns([b"own"])
    assert [one[0] for one in read_all(store)] == [0, 2, 90]


def transactional(base_offset, count, kept, producer_id, **identity):
    return cleaned(
        base_offset,
        count,
        kept,
        attributes=codec.TRANSACTIONAL,
        producer_id=producer_id,
        producer_epoch=0,
        **identity,
    )


def marker(kind, offset, producer_id):
    return codec.encode_marker(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, offset=offset
    )


# Committed, with and without its marker; aborted, its data gone or all but an empty batch; open.
TRANSACTIONS = {
    0: transactional(3, 4, [4, 5], 1, base_sequence=3)
    + marker(codec.COMMIT, 9, 1)
    + marker(codec.ABORT, 14, 2)
    + marker(codec.COMMIT, 15, 1),
    30: transactional(33, 2, [], 2, base_sequence=7)
    + marker(codec.ABORT, 40, 2)
    + cleaned(44, 2, [45])
    + transactional(50, 3, [51], 1, base_sequence=20)
    + marker(codec.ABORT, 53, 1)
    + cleaned(60, 3, [62])
    + transactional(70, 1, [70], 3, base_sequence=0)
    + cleaned(71, 1, [71]),
}


def test_transactions_are_seen_as_their_markers_say(moved, open_store):
    store = moved(TRANSACTIONS)
    for _ in range(2):
        partition = store.partition(*WHERE)
        # What was open is aborted by the first opening.
        assert partition.last_stable_offset == 73
        every = [one[0] for one in read_all(store)]
        assert every == [4, 5, 45, 51, 62, 70, 71]
        with store.consumer(isolation_level="read_committed") as consumer:
            consumer.assign([WHERE])
            found = []
            while records := consumer.poll(timeout=0):
                found += [one.offset for one in records]
            assert found == [4, 5, 45, 62, 71]
            assert consumer.position(WHERE) == 73
        aborted = partition.aborted_transactions(0, 100)
        assert [(one.producer_id, one.first_offset, one.last_offset) for one in aborted] == [
            (2, 33, 40),
            (1, 50, 53),
            (3, 70, 72),
        ]
        assert [one["reason"] for one in store.verify()] == []
        store.close()
        store = open_store()


def test_a_snapshot_may_remember_what_was_compacted_since(moved, store_path, open_store):
    """Kafka's snapshots are not rewritten when the batches that they tell of go."""
    with moved({0: cleaned(0, 3, [0, 2], producer_id=5, producer_epoch=0, base_sequence=0)}):
        pass
    with open_store() as store:
        store.partition(*WHERE).append_batch(
            codec.simple_batch([b"a"] * 2, producer_id=5, producer_epoch=0, base_sequence=3)
        )
        engine_of(store).partition(*WHERE).roll()
    later = cleaned(20, 2, [21], producer_id=5, producer_epoch=1, base_sequence=9)
    snapshot = (store_path / "t-0" / f"{5:020d}.snapshot").read_bytes()
    replace_logs(store_path, {0: cleaned(0, 1, [0]), 5: later}, "t-0")
    (store_path / "t-0" / f"{5:020d}.snapshot").write_bytes(snapshot)
    forget_all(store_path)
    store = open_store()
    assert engine_of(store).partition(*WHERE).producer(5).last_sequence == 10
    assert is_sound(store)


def test_a_marker_behind_a_hole_ends_no_count_of_sequences(moved):
    """In older versions of transactions it has the epoch of the batches before and after it."""
    store = moved(
        {
            0: transactional(0, 2, [0, 1], 6, base_sequence=0)
            + marker(codec.COMMIT, 2, 6)
            # The batch with sequences 2 and 3 was aborted, and is gone.
            + marker(codec.ABORT, 5, 6)
            + transactional(6, 2, [7], 6, base_sequence=4)
            + marker(codec.COMMIT, 8, 6)
        }
    )
    assert engine_of(store).partition(*WHERE).producer(6).last_sequence == 5
    assert is_sound(store)


@pytest.mark.parametrize("base", [0, 2])
def test_a_marker_whose_batches_are_gone_says_nothing_of_sequences(moved, base):
    """They were in a hole before it, or below the log's beginning."""
    store = moved(
        {
            base: marker(codec.COMMIT, 2, 6)
            + transactional(3, 2, [4], 6, base_sequence=2)
            + marker(codec.COMMIT, 5, 6)
        }
    )
    assert engine_of(store).partition(*WHERE).producer(6).last_sequence == 3
    # That nothing tells of the producers below a log's beginning is another problem.
    assert not [one for one in store.verify() if "sequence" in str(one["reason"])]


def test_retention_deletes_nothing_of_a_topic_that_is_only_compacted(open_store):
    store = open_store()
    limits = {"retention.ms": 1, "retention.bytes": 1, "segment.bytes": 1024}
    for policy in ("compact", "delete", "compact,delete"):
        name = policy.replace(",", "-")
        create_topic_of_kafka(store, name, {**limits, "cleanup.policy": policy})
        for _ in range(8):
            store.producer().append(name, 0, [b"x" * 400])
    parts_of(store).checkpointer.retain()
    left = {name: store.partition(name, 0).log_start_offset for name in store.topics()}
    assert left["compact"] == 0
    assert left["delete"] > 0
    assert left["compact-delete"] > 0


def test_the_policy_is_shown_and_a_wrong_one_refused(open_store, store_path):
    with open_store() as store:
        with pytest.raises(InvalidConfigError, match=r"cleanup\.policy must be one of .*'fold'"):
            store.create_topic("u", config={"cleanup.policy": "fold"})
        create_topic_of_kafka(store, "t", {"cleanup.policy": "compact"})
    with open_store() as store:
        assert store.topics()["t"].config == {"cleanup.policy": "compact"}
    said = call("topics", "describe", "t", "--json", "--store", store_path)
    assert said.json["config"]["cleanup.policy"] == "compact"
    assert said.json["config"]["retention.ms"] == -1
    assert call("verify", "--store", store_path).status != FAILED


@pytest.mark.parametrize("level", LEVELS)
def test_a_range_of_spark_has_what_is_left_in_it(moved_once, level):
    pytest.importorskip("pyarrow")
    from eoslog.spark.source.offset_ranges import OffsetRange
    from eoslog.spark.source.record_columns import record_batches

    assert moved_once.snapshot(["t"]) == {WHERE: COMPACTED_END}
    for first in range(0, COMPACTED_END, 3):
        for upper_bound in range(first + 1, COMPACTED_END + 1):
            wanted = OffsetRange(WHERE, first, upper_bound)
            found = [
                offset
                for batch in record_batches(
                    engine_of(moved_once).partition(*WHERE),
                    wanted,
                    ["offset"],
                    level,
                    fail_on_data_loss=True,
                )
                for offset in batch.column("offset").to_pylist()
            ]
            assert found == [one[0] for one in RECORDS if first <= one[0] < upper_bound], wanted


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_lost_records_whose_log_nothing_knows_any_more_are_named(
    store_path, open_store, caplog, clean
):
    """A lost segment of ours, with all that was derived from the log: the one case that looks like
    a log that was moved here.
    """
    with open_store() as store:
        store.create_topic("t", config={"segment.bytes": 1024})
        for index in range(9):
            store.producer().append("t", 0, [b"%d" % index * 400])
        bases = [int(str(one["base_offset"])) for one in store.partition(*WHERE).segments()]
    assert len(bases) > 3
    marker = (store_path / ".kafka_cleanshutdown").read_bytes()
    forget_all(store_path)
    if clean:
        (store_path / ".kafka_cleanshutdown").write_bytes(marker)
    (store_path / "t-0" / f"{bases[1]:020d}.log").unlink()
    with open_store() as store:
        found = [one[0] for one in read_all(store)]
        assert found == [*range(bases[1]), *range(bases[2], 9)]
    assert f"{bases[1]} to {bases[2] - 1} ({bases[2] - bases[1]} offsets in 1 hole)" in caplog.text
    (store_path / "t-0" / f"{bases[3]:020d}.log").unlink()
    with open_store() as store, pytest.raises(CorruptRecordError, match="offsets are missing"):
        read_all(store)


@pytest.mark.parametrize("level", LEVELS)
def test_a_scan_steps_over_holes_and_ends_in_them(moved, level):
    pytest.importorskip("pyarrow")
    store = moved()
    for first in range(0, COMPACTED_END, 7):
        for upper_bound in range(first, COMPACTED_END + 1, 3):
            scan = store.scan("t", offsets={0: (first, upper_bound)}, isolation_level=level)
            found = [offset for batch in scan for offset in batch.column("offset").to_pylist()]
            assert found == [one[0] for one in RECORDS if first <= one[0] < upper_bound]
