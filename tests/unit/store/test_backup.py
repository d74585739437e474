"""A backup of a live store: what the death of all processes at one instant leaves, recovered."""

import errno
import os
import threading
import time

import pytest
from harness.fork import in_child
from harness.waiting import eventually
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    leave_undone,
    stage_job,
    visible_numbers,
)
from stores import check_nothing_is_open, values_of
from unclean_stops import as_of_a_crash

import eoslog
from eoslog import TopicPartition
from eoslog.bindings import shared_page
from eoslog.errors import (
    CorruptRecordError,
    LogClosedError,
    NotAStoreError,
    StoreError,
    StoreFullError,
    StoreInUseError,
)
from eoslog.fs.file_lock import file_locked
from eoslog.store import backup as module
from eoslog.store.store import engine_of, parts_of

T0 = TopicPartition("t", 0)
# In a control page: odd while its fields are being changed.
PAGE_SEQUENCE_AT = 36
SMALL = {"segment.bytes": 4096}


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy"


def append(store, count=1, *, topic="t", number=0, size=500):
    """Records that say which they are; a few of them a segment of 4 KiB."""
    partition = engine_of(store).partition(topic, number)
    for _ in range(count):
        partition.append_columns([b"%06d" % partition.log_end_offset + bytes(size)])
    return partition


def numbers_of(store, topic="t", number=0):
    return [int(value[:6]) for value in values_of(store, topic, number)]


def at_progress(work):
    """Progress of a backup that does something once, while files are copied."""
    calls = []

    def progress(done, total):
        assert 0 < done <= total
        calls.append(done)
        if len(calls) == 1:
            work()

    return progress


def names_in(path):
    return sorted(one.name for one in path.iterdir())


def test_the_copy_is_a_store_that_was_closed_cleanly(store, copy):
    store.create_topic("t", partitions=3, config=SMALL)
    for number in range(2):
        append(store, 40, number=number)
    with store.consumer("g") as consumer:
        consumer.assign([T0])
        consumer.commit({T0: 17})
    calls = []
    result = store.backup(copy, progress=lambda done, total: calls.append((done, total)))
    assert (result.path, result.topics, result.partitions) == (copy, 1, 3)
    assert result.damage == ()
    assert calls[-1] == (result.copied_bytes, result.copied_bytes)
    assert (copy / ".kafka_cleanshutdown").exists()
    assert not [*(copy / "state").glob("spare*"), *(copy / "state/journal").glob("*")]
    with eoslog.open(copy) as of_then:
        assert of_then.verify() == []
        assert of_then.topics() == store.topics()
        for number in range(3):
            assert numbers_of(of_then, number=number) == numbers_of(store, number=number)
        with of_then.consumer("g") as consumer:
            assert consumer.committed(T0) == 17
    assert names_in(copy.parent) == ["copy", "store"]


def test_both_go_on_by_themselves(store, copy):
    store.create_topic("t", config=SMALL)
    append(store, 20)
    store.backup(copy)
    with eoslog.open(copy) as of_then:
        append(of_then, 30)
        append(store, 10)
        assert numbers_of(of_then) == list(range(50))
        assert numbers_of(store) == list(range(30))
        assert of_then.verify() == store.verify() == []


def test_what_is_appended_while_files_are_copied_is_not_in_it(store, copy):
    store.create_topic("t", config=SMALL)
    append(store, 20)
    store.backup(copy, progress=at_progress(lambda: append(store, 200)))
    assert len(numbers_of(store)) == 220
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(20))
        assert of_then.verify() == []


@pytest.mark.parametrize("durability", ["process", "commit"])
def test_open_transactions_are_aborted_and_prepared_ones_wait(open_store, copy, durability):
    store = open_store(durability)
    store.create_topic("t", partitions=2)
    first, second, waiting = (store.producer(transactional_id=name) for name in "abp")
    for producer in (first, second, waiting):
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(2):
            producer.append("t", number, [b"done"])
        producer.commit_transaction()
    # They overlap: there is no instant without one.
    first.begin_transaction()
    first.append("t", 0, [b"open"])
    second.begin_transaction()
    second.append("t", 0, [b"open"])
    second.append("t", 1, [b"open"])
    waiting.begin_transaction()
    waiting.append("t", 1, [b"prepared"])
    prepared = waiting.prepare_transaction()
    store.backup(copy)
    first.commit_transaction()
    second.commit_transaction()
    store.commit_prepared([prepared])
    assert values_of(store, "t", 0) == [b"done"] * 3 + [b"open"] * 2
    with eoslog.open(copy) as of_then:
        states = {one.transactional_id: one.transaction_state for one in of_then.transactions()}
        assert states == {"a": "CompleteAbort", "b": "CompleteAbort", "p": "Ongoing"}
        assert values_of(of_then, "t", 0) == [b"done"] * 3
        of_then.commit_prepared([prepared])
        assert values_of(of_then, "t", 1) == [b"done"] * 3 + [b"prepared"]
        check_nothing_is_open(of_then)
        assert of_then.verify() == []


@pytest.mark.parametrize("step", ["adopt_files", "span_of_job"])
def test_a_decided_job_is_completed_in_it(open_store, copy, step):
    store = open_store("commit")
    store.create_topic(TOPIC, partitions=PARTITIONS)
    messages = stage_job(store.path, store.begin_run(APP), range(500))
    stage_job(store.path, store.begin_run("undecided"), range(500, 600), app_id="undecided")
    from eoslog.staging import pending_jobs

    leave_undone(store, pending_jobs, step, messages)
    assert store.application(APP).state == "prepared"
    store.backup(copy)
    with eoslog.open(copy) as of_then:
        assert of_then.application(APP).version == 0
        assert of_then.application(APP).state == "complete"
        assert visible_numbers(of_then) == expected_numbers(range(500))
        assert of_then.verify() == []
    assert not list((copy / "staging").glob("undecided*"))
    parts_of(store).staged.roll_forward()
    assert visible_numbers(store) == expected_numbers(range(500))


def test_a_named_producer_goes_on_in_it(store, copy):
    store.create_topic("t")
    with store.producer(name="n") as producer:
        producer.append("t", 0, [b"1", b"2"])
        store.backup(copy)
        producer.append("t", 0, [b"3"])
    with eoslog.open(copy) as of_then, of_then.producer(name="n") as producer:
        assert producer.next_sequence("t", 0) == 2


def test_each_of_the_five_last_batches_of_a_producer_is_known_in_it(store, copy):
    store.create_topic("t")
    partition = engine_of(store).partition("t", 0)
    now_ms = time.time_ns() // 1_000_000  # One that is silent for long is forgotten.
    numbered = {"timestamp_ms": now_ms, "producer_id": 1 << 41, "producer_epoch": 0}
    for sequence in range(5):
        partition.append_columns([b"v"], base_sequence=sequence, **numbered)
    partition.producer_state.persist()
    store.backup(copy)
    with eoslog.open(copy) as of_then:
        there = engine_of(of_then).partition("t", 0)
        for sequence in range(5):
            result = there.append_columns([b"v"], base_sequence=sequence, **numbered)
            assert (result.duplicate, result.base_offset) == (True, sequence)


def test_partitions_that_no_process_has_open_are_in_it(open_store, copy):
    with open_store() as store:
        store.create_topic("t", config=SMALL)
        append(store, 30)
        store.delete_records({T0: 12})
    store = open_store()
    store.create_topic("other")
    store.backup(copy)
    assert parts_of(store).files.partitions.if_open(T0) is None
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(12, 30))
        assert of_then.partition("t", 0).log_start_offset == 12
        assert of_then.verify() == []


def test_what_an_unclean_stop_left_is_recovered_first(open_store, copy):
    with open_store() as store:
        store.create_topic("t")
        path = append(store, 30).path / f"{0:020d}.log"
    as_of_a_crash(store.path)
    os.truncate(path, path.stat().st_size - 10)
    store = open_store()
    result = store.backup(copy)
    assert result.damage == ()
    assert engine_of(store).partition("t", 0).log_end_offset == 29
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(29))


def test_a_log_start_within_a_batch_is_kept(store, copy):
    store.create_topic("t")
    engine_of(store).partition("t", 0).append_columns([b"%06d" % number for number in range(10)])
    store.delete_records({T0: 4})
    store.backup(copy)
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(4, 10))


# What must not go while it is copied.


def test_deleted_records_leave_their_files_until_all_is_copied(store, copy):
    store.create_topic("t", config=SMALL)
    partition = append(store, 40)

    def delete():
        assert store.delete_records({T0: 30}) == {T0: 30}
        assert numbers_of(store) == list(range(30, 40))
        assert partition.log.first_base_offset == 0

    store.backup(copy, progress=at_progress(delete))
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(40))
    parts_of(store).checkpointer.do_round()
    eventually(lambda: partition.log.first_base_offset > 20, "the files stay")
    assert numbers_of(store) == list(range(30, 40))
    assert store.verify() == []


def test_deleted_records_go_though_the_process_that_deleted_them_is_gone(store, copy):
    store.create_topic("t", config=SMALL)
    partition = append(store, 40)

    def delete():
        with eoslog.open(store.path) as other:
            other.delete_records({T0: 30})

    parts_of(store).checkpointer.stop()
    store.backup(copy, progress=at_progress(lambda: in_child(delete)))
    assert partition.log.first_base_offset > 20
    assert numbers_of(store) == list(range(30, 40))
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(40))


def test_retention_waits_until_all_is_copied(store, copy):
    store.create_topic("t", config={**SMALL, "retention.bytes": 8192})
    partition = append(store, 40)
    retain = parts_of(store).checkpointer.retain

    def try_retention():
        retain()
        assert partition.log_start_offset == 0

    store.backup(copy, progress=at_progress(try_retention))
    retain()
    assert partition.log_start_offset > 0


def test_a_deleted_topic_leaves_its_files_until_all_is_copied(store, copy):
    store.create_topics({"t": 1, "u": 1})
    path = append(store, 10).path
    append(store, 10, topic="u")

    def delete():
        store.delete_topic("t")
        assert list(store.topics()) == ["u"]
        assert path.is_dir()
        with pytest.raises(StoreInUseError, match="a backup copies its files"):
            store.create_topic("t")
        assert store.verify() == []

    store.backup(copy, progress=at_progress(delete))
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(10))
    store.create_topic("t")
    assert numbers_of(store) == []


def test_compaction_waits_until_all_is_copied(store, copy):
    store.create_topic("t")
    append(store)
    state_log = parts_of(store).files.state_log

    def fill():
        with store.producer(transactional_id="x") as producer:
            producer.init_transactions()
        partition = state_log.partition_of("x")
        partition.roll()
        return partition

    def try_to_compact():
        partition = fill()
        assert parts_of(store).files.compact(partition) == 0
        assert partition.log_start_offset == 0

    fill()
    store.backup(copy, progress=at_progress(try_to_compact))
    partition = fill()
    assert parts_of(store).files.compact(partition) > 0
    with eoslog.open(copy) as of_then:
        assert [one.transactional_id for one in of_then.transactions()] == ["x"]


def test_topics_that_are_made_and_altered_meanwhile_are_not_in_it(store, copy):
    store.create_topic("t")
    append(store)

    def change():
        store.create_topic("later")
        append(store, topic="later")
        store.alter_topic("t", {"segment.bytes": 8192}, partitions=2)
        append(store, number=1)

    before = store.topics()
    store.backup(copy, progress=at_progress(change))
    with eoslog.open(copy) as of_then:
        assert of_then.topics() == before
        assert of_then.verify() == []


def test_an_internal_topic_that_begins_meanwhile_does_no_harm(store, copy):
    store.create_topic("t")
    append(store)

    def begin():
        with store.producer(transactional_id="x") as producer:
            producer.init_transactions()

    store.backup(copy, progress=at_progress(begin))
    with eoslog.open(copy) as of_then:
        assert of_then.transactions() == []
        assert of_then.verify() == []


def test_another_backup_at_the_same_time_is_refused_by_name(store, tmp_path, monkeypatch):
    store.create_topic("t")
    append(store)
    monkeypatch.setattr(shared_page, "LOCK_TIMEOUT_S", 0.05)
    errors = []

    def again():
        try:
            store.backup(tmp_path / "second")
        except StoreInUseError as error:
            errors.append(str(error))

    def in_a_thread():
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()

    store.backup(tmp_path / "first", progress=at_progress(in_a_thread))
    assert "another backup" in errors[0]
    assert names_in(tmp_path) == ["first", "store"]


def test_a_log_of_a_deleted_topic_is_not_waited_for(store, copy):
    store.create_topics({"t": 1, "u": 1})
    append(store)
    append(store, topic="u")
    parts_of(store).checkpointer.stop()
    files = parts_of(store).files
    with files.file_hold.keeping():
        store.delete_topic("t")  # Its files stay for now, and so does its page.
    # As a writer leaves it that dies within an append.
    with (files.paths.control(T0)).open("r+b") as page:
        page.seek(PAGE_SEQUENCE_AT)
        sequence = page.read(4)[0] | 1
        page.seek(PAGE_SEQUENCE_AT)
        page.write(bytes([sequence]))
    store.backup(copy)
    with eoslog.open(copy) as of_then:
        assert list(of_then.topics()) == ["u"]


def test_a_store_that_is_closed_before_the_instant_is_not_copied(store, copy, monkeypatch):
    """Another session may begin: what it appends while files are copied would be in the copy."""
    store.create_topic("t")
    append(store)
    real = module._Backup._topics_held

    def close_first(backup):
        store.close()
        return real(backup)

    monkeypatch.setattr(module._Backup, "_topics_held", close_first)
    with pytest.raises(LogClosedError):
        store.backup(copy)
    assert names_in(copy.parent) == ["store"]


def test_a_process_that_hangs_in_the_creation_of_a_topic_is_reported(store, copy, monkeypatch):
    store.create_topic("t")
    append(store)
    monkeypatch.setattr(shared_page, "LOCK_TIMEOUT_S", 0.05)
    hangs = pytest.raises(StoreInUseError, match="creating, altering or deleting a topic")
    with file_locked(store.path / "state" / "topics.lock"), hangs:
        store.backup(copy)
    store.backup(copy)


# What is refused, and what an error leaves.


def test_a_destination_that_holds_something_or_is_in_the_way_is_refused(store, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for wrong in ("full", "store", "store/inside", "."):
        with pytest.raises(StoreError):
            store.backup(tmp_path / wrong)
    for wrong, kind in ((3, TypeError), (b"x", TypeError), ("", ValueError), ("a\0", ValueError)):
        with pytest.raises(kind, match="destination"):
            store.backup(wrong)
    assert names_in(tmp_path) == ["full", "store"]


@pytest.mark.parametrize("step", ["copy_bytes", "write_checkpoints", "write_meta_properties"])
def test_a_full_disk_leaves_nothing_and_the_store_goes_on(store, copy, monkeypatch, step):
    store.create_topic("t", config=SMALL)
    partition = append(store, 30)
    calls = []
    real = getattr(module, step)

    def fail(*arguments, **options):
        calls.append(1)
        if len(calls) >= (3 if step == "copy_bytes" else 1):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    monkeypatch.setattr(module, step, fail)
    with pytest.raises(StoreFullError):
        store.backup(copy)
    assert names_in(copy.parent) == ["store"]
    store.delete_records({T0: 25})
    assert partition.log.first_base_offset > 15
    monkeypatch.undo()
    store.backup(copy)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("of the caller")])
def test_an_interrupt_leaves_nothing_and_the_store_goes_on(store, copy, error):
    store.create_topic("t", config=SMALL)
    partition = append(store, 30)

    def interrupt():
        raise error

    with pytest.raises(type(error)):
        store.backup(copy, progress=at_progress(interrupt))
    assert names_in(copy.parent) == ["store"]
    store.delete_records({T0: 25})
    assert partition.log.first_base_offset > 15
    store.create_topic("made")


def test_a_missing_file_is_an_error_with_its_name(store, copy):
    store.create_topic("t", config=SMALL)
    partition = append(store, 30)
    first = partition.path / f"{0:020d}.log"
    elsewhere = first.rename(copy.parent / "elsewhere")
    with pytest.raises(CorruptRecordError, match=first.name):
        store.backup(copy)
    elsewhere.rename(first)
    assert names_in(copy.parent) == ["store"]


def test_what_is_being_built_is_no_store(store, copy, monkeypatch):
    store.create_topic("t")
    append(store)
    opened = []

    def look(backup):
        path = backup._copy.root
        for one in (path, path / "."):
            with pytest.raises(NotAStoreError, match="remove it, or wait"):
                eoslog.open(one)
        opened.append(path)

    monkeypatch.setattr(module._Backup, "recover", look)
    store.backup(copy)
    assert [path.name[:13] for path in opened] == [".copy.eoslog-"]


def test_damage_of_the_store_is_named(store, copy, monkeypatch):
    store.create_topic("t")
    partition = append(store, 10)
    # As after a failed sync: the end is recovered in the copy.
    real = module._Backup._ends
    end = {}

    def cut_short(backup, topics):
        end.update(real(backup, topics))
        return {where: one._replace(failed=True, recovery_point=0) for where, one in end.items()}

    monkeypatch.setattr(module._Backup, "_ends", cut_short)
    path = partition.path / f"{0:020d}.log"
    with path.open("r+b") as file:
        file.seek(end_of_half(path))
        file.write(b"broken")
    result = store.backup(copy)
    assert len(result.damage) == 1
    assert "t-0: " in result.damage[0]
    assert "cut off" in result.damage[0]


def end_of_half(path):
    return path.read_bytes().rstrip(b"\0").__len__() // 2
