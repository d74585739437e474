"""A restore makes a store of a backup: with new ids, and never in the place of another store."""

import subprocess
import time

import pytest
from stores import QUIET, values_of

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    InvalidRequestError,
    NotAStoreError,
    OffsetOutOfRangeError,
    StagedSourceError,
    StoreError,
    StoreInUseError,
)
from eoslog.exchange import restore as module
from eoslog.fs.identity_files import read_meta_properties
from eoslog.staging.source import VersionSource
from eoslog.store.store import engine_of, parts_of

T0 = TopicPartition("t", 0)


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy"


@pytest.fixture
def restored(tmp_path):
    return tmp_path / "restored"


def below(path):
    """All files with their bytes, but those of locks, which name their holder."""
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in path.rglob("*")
        if one.is_file() and not one.name.endswith("lock")
    }


def test_it_goes_on_where_the_backup_was_made(store, copy, restored):
    store.create_topic("t", partitions=2)
    with store.producer() as producer:
        producer.append("t", 0, [b"1", b"2"])
    with store.consumer("g") as consumer:
        consumer.assign([T0])
        consumer.commit({T0: 1})
    store.backup(copy)
    before = below(copy)
    result = eoslog.restore(copy, restored)
    assert (result.path, result.topics, result.partitions) == (restored, 1, 2)
    assert below(copy) == before
    with eoslog.open(restored) as again:
        assert again.topics() == store.topics()
        assert values_of(again, "t") == [b"1", b"2"]
        with again.consumer("g") as consumer:
            assert consumer.committed(T0) == 1
        with again.producer() as producer:
            producer.append("t", 0, [b"3"])
        assert again.verify() == []
    assert eoslog.restore(copy, restored.with_name("second")).path.is_dir()


@pytest.fixture
def read_only(tmp_path):
    """A function that makes a directory of the same files, on which nothing can be written."""
    mounted = tmp_path / "medium"
    mounted.mkdir()

    def mount(path):
        for options in (["--bind", path, mounted], ["-o", "remount,ro,bind", mounted]):
            done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no directory can be mounted: {done.stderr.strip()}")
        return mounted

    yield mount
    subprocess.run(["umount", mounted], check=False, stderr=subprocess.DEVNULL)


def test_a_read_only_medium_will_do(store, copy, restored, read_only):
    store.create_topic("t")
    with store.producer() as producer:
        producer.append("t", 0, [b"1"])
    store.backup(copy)
    medium = read_only(copy)
    assert eoslog.restore(medium, restored).topics == 1
    with eoslog.open(restored) as again:
        assert values_of(again, "t") == [b"1"]
    with eoslog.open(copy), pytest.raises(StoreInUseError, match="is open, and nothing can be"):
        eoslog.restore(medium, restored.with_name("second"))
    assert not restored.with_name("second").exists()


def test_it_has_ids_of_its_own(store, copy, restored):
    store.create_topic("t")
    store.backup(copy)
    result = eoslog.restore(copy, restored)
    old, new = read_meta_properties(copy), read_meta_properties(restored)
    assert read_meta_properties(store.path) == old
    assert new.cluster_id == result.cluster_id
    assert new.cluster_id != old.cluster_id
    assert new.directory_id != old.directory_id


def test_its_producer_ids_are_none_that_the_lost_store_gives_out(store, copy, restored):
    store.create_topic("t")
    store.producer(transactional_id="a").init_transactions()
    store.backup(copy)
    result = eoslog.restore(copy, restored)
    take = parts_of(store).files.producer_ids.take
    of_lost = {take() for _ in range(2500)}
    with eoslog.open(restored) as again:
        ids = [parts_of(again).files.producer_ids.take() for _ in range(2)]
        assert ids[0] == result.first_producer_id
        assert min(ids) - max(of_lost) > 1 << 39
        assert max(ids) < 1 << 61
    # Another one of the same backup, and one of its own backup, have others.
    second = eoslog.restore(copy, restored.with_name("second"))
    assert abs(second.first_producer_id - result.first_producer_id) > 1000
    with eoslog.open(restored) as again:
        again.backup(copy.with_name("copy2"))
    third = eoslog.restore(copy.with_name("copy2"), restored.with_name("third"))
    assert third.first_producer_id - result.first_producer_id > 1 << 40


def test_it_is_never_put_over_anything(store, copy, restored):
    store.create_topic("t")
    store.backup(copy)
    restored.mkdir()
    (restored / "file").touch()
    for wrong, kind in (
        (restored, StoreError),
        (store.path, StoreError),
        (copy, InvalidRequestError),
        (copy / "inside", InvalidRequestError),
    ):
        with pytest.raises(kind):
            eoslog.restore(copy, wrong)
    with pytest.raises(NotAStoreError):
        eoslog.restore(restored, restored.with_name("other"))
    for arguments in ((3, restored), (copy, b"x")):
        with pytest.raises(TypeError):
            eoslog.restore(*arguments)
    with eoslog.open(copy), pytest.raises(StoreInUseError):
        eoslog.restore(copy, restored.with_name("other"))
    assert sorted(one.name for one in copy.parent.iterdir()) == ["copy", "restored", "store"]


def test_what_a_killed_backup_left_is_not_restored(store, copy, restored):
    store.create_topic("t")
    store.backup(copy)
    left, link = copy.with_name(".copy.eoslog-abcd0123"), copy.with_name("link")
    copy.rename(left)
    link.symlink_to(left)
    for name in (left, link):
        with pytest.raises(NotAStoreError, match="was killed"):
            eoslog.restore(name, restored)
        with pytest.raises(NotAStoreError, match="was killed"):
            eoslog.open(name)
    assert not restored.exists()


def test_an_error_leaves_nothing(store, copy, restored, monkeypatch):
    store.create_topic("t")
    store.backup(copy)

    def fail(*_):
        raise StoreError("no")

    monkeypatch.setattr(module, "write_meta_properties", fail)
    with pytest.raises(StoreError):
        eoslog.restore(copy, restored)
    assert sorted(one.name for one in copy.parent.iterdir()) == ["copy", "store"]


# What is said on docs/backup.md of those that went on after the backup.


def test_a_named_producer_asks_where_it_is_and_sends_again(store, copy, restored):
    store.create_topic("t")
    with store.producer(name="n") as producer:
        producer.append("t", 0, [b"0", b"1"])
        store.backup(copy)
        producer.append("t", 0, [b"2"])
    eoslog.restore(copy, restored)
    with eoslog.open(restored) as again, again.producer(name="n") as producer:
        # By the lost store it was 3.
        assert producer.next_sequence("t", 0) == 2
        producer.append("t", 0, [b"2"])
        assert values_of(again, "t") == [b"0", b"1", b"2"]


def test_a_client_with_an_id_of_the_lost_store_is_not_taken_for_another(store, copy, restored):
    """A producer that the backup does not know goes on, as a client of a gateway may."""
    store.create_topic("t")
    store.backup(copy)
    client = {"producer_id": parts_of(store).files.producer_ids.take(), "producer_epoch": 0}
    client["timestamp_ms"] = time.time_ns() // 1_000_000
    engine_of(store).partition("t", 0).append_columns([b"lost"], base_sequence=0, **client)
    eoslog.restore(copy, restored)
    with eoslog.open(restored) as again:
        with again.producer() as producer:
            producer.append("t", 0, [b"new"])
        there = engine_of(again).partition("t", 0)
        assert not there.append_columns([b"next"], base_sequence=1, **client).duplicate
        assert values_of(again, "t") == [b"new", b"next"]


def test_a_consumer_beyond_the_end_meets_its_reset(store, copy, restored):
    store.create_topic("t")
    with store.producer() as producer:
        producer.append("t", 0, [b"0"])
        store.backup(copy)
        producer.append("t", 0, [b"1", b"2"])
    eoslog.restore(copy, restored)
    with eoslog.open(restored) as again:
        with again.consumer(auto_offset_reset="none") as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 3)
            with pytest.raises(OffsetOutOfRangeError):
                consumer.poll(timeout=0)
        # Its committed offset is that of the backup.
        with again.consumer("g") as consumer:
            consumer.assign([T0])
            assert consumer.committed(T0) is None


def commit_batch(store, number, source="query"):
    """What the sink of a stream does with its micro-batch of a number."""
    counted = VersionSource(source_id=source, driver_id="driver", place=None, new_allowed=False)
    run_id = eoslog.staging.source.version_run_id(number, source, "run")
    partitions = {"t": 1}
    with eoslog.StagedWriter(store.path, "app", run_id, "0", partitions=partitions) as writer:
        writer.append("t", 0, [b"batch %d" % number])
    return store.commit_staged("app", number, [writer.message], run_id, source=counted)


def test_a_stream_that_writes_goes_on_after_the_batches_that_are_lost(store, copy, restored):
    store.create_topic("t")
    for number in range(2):
        commit_batch(store, number)
    store.backup(copy)
    commit_batch(store, 2)
    eoslog.restore(copy, restored)
    with eoslog.open(restored) as again:
        assert again.application("app").version == 1
        # Its checkpoint says that 2 is in: the next one is 3, and 2 stays lost.
        commit_batch(again, 3)
        assert values_of(again, "t") == [b"batch 0", b"batch 1", b"batch 3"]


def test_a_checkpoint_from_before_the_backup_is_refused_below_the_newest_batch(
    store, copy, restored
):
    store.create_topic("t")
    for number in range(3):
        commit_batch(store, number)
    store.backup(copy)
    eoslog.restore(copy, restored)
    with eoslog.open(restored) as again:
        commit_batch(again, 2)  # The newest one again: nothing is added.
        with pytest.raises(StagedSourceError):
            commit_batch(again, 1)
        assert values_of(again, "t") == [b"batch 0", b"batch 1", b"batch 2"]


def test_what_was_prepared_is_prepared_in_both(store, copy, restored):
    store.create_topic("t")
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.append("t", 0, [b"v"])
    prepared = producer.prepare_transaction()
    store.backup(copy)
    store.commit_prepared([prepared])
    eoslog.restore(copy, restored)
    with eoslog.open(restored, config=QUIET) as again:
        assert values_of(again, "t") == []
        again.commit_prepared([prepared])
        assert values_of(again, "t") == [b"v"]
