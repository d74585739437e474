"""`verify` of copies whose files are of different moments, and of stores that only look like it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from cli_calls import FAILED, call
from staged_jobs import load, value_of
from store_copies import copy_store

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.transaction_record import encode_transaction_value
from eoslog.errors import TransactionCoordinatorFencedError
from eoslog.inspect.store_repair import TORN_ADVICE
from eoslog.inspect.transaction_verification import AHEAD, OLDER, DecidedTransactions, Marker
from eoslog.storage import topic_registry
from eoslog.store.store import abandon, engine_of, parts_of
from eoslog.transactions.state_key import state_partition_of, transaction_key
from eoslog.transactions.timeouts import expire_ids

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = (T0, T1)
ID = "writer"
GROUP = "readers"
CHECKPOINTS = ("recovery-point-offset", "replication-offset", "log-start-offset")
Work = Callable[[eoslog.Store, int], None]


@pytest.fixture
def small_segments(monkeypatch):
    config = {"segment.bytes": 16_384, "max.message.bytes": 16_384}
    monkeypatch.setattr(topic_registry, "INTERNAL_TOPIC_CONFIG", config)


def commit(
    store: eoslog.Store,
    number: int,
    partitions: Iterable[TopicPartition] = BOTH,
    *,
    transactional_id: str = ID,
    group: str | None = None,
    abort: bool = False,
) -> None:
    """One transaction, by a producer of its own."""
    with store.producer(transactional_id=transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for where in partitions:
            producer.send(where.topic, b"%d" % number, partition=where.partition)
        if group is not None:
            producer.send_offsets_to_transaction({T0: number}, group)
        if abort:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def by_one_id(store: eoslog.Store, number: int) -> None:
    commit(store, number)


def by_an_id_each(store: eoslog.Store, number: int) -> None:
    commit(store, number, transactional_id=f"{ID}-{number}")


def to_the_last_only(store: eoslog.Store, number: int) -> None:
    commit(store, number, (T1,))


def aborted(store: eoslog.Store, number: int) -> None:
    commit(store, number, abort=True)


def open_store(path: Path, **options: Any) -> eoslog.Store:
    store = eoslog.open(path, create=True, **options)
    store.create_topic("t", partitions=2, exist_ok=True)
    return store


def only(
    path: Path, names: Iterable[str], *, without: bool = False
) -> Callable[[str, list[str]], list[str]]:
    """What `copytree` leaves out to copy only these of the store's directories, or all others."""
    wanted = set(names)

    def left_out(directory: str, found: list[str]) -> list[str]:
        if directory != str(path):
            return []
        return [name for name in found if (name in wanted) == without]

    return left_out


def torn_copy(
    tmp_path: Path,
    late: Iterable[str],
    work: Work,
    *,
    closed: bool,
    before: Work | None = by_one_id,
    count: int = 2,
) -> Path:
    """Commit once, copy all but the `late` directories, commit again, and copy these.

    `closed`: the store is closed while it is copied.
    """
    source, copy = tmp_path / "store", tmp_path / "copy"
    names = set(late)
    store = open_store(source)
    if before is not None:
        before(store, 1)
    if closed:
        store.close()
    copy_store(source, copy, ignore=only(source, names, without=True))
    if closed:
        store = eoslog.open(source)
    for number in range(2, 2 + count):
        work(store, number)
    if closed:
        store.close()
    copy_store(source, copy, ignore=only(source, names), dirs_exist_ok=True)
    store.close()
    return copy


def reasons_of(path: Path, where: TopicPartition, words: str) -> list[str]:
    """What `verify` says of a partition of a copy with these words."""
    with eoslog.open(path) as store:
        found = store.verify()
    return [
        str(one["reason"])
        for one in found
        if one["path"] == str(path / str(where)) and str(one["reason"]).startswith(words)
    ]


def all_but(*names: str) -> list[str]:
    """The directories and files of a store with topic t, but for these."""
    internal = [
        f"{topic}-{number}"
        for topic in ("__transaction_state", "__consumer_offsets")
        for number in range(50)
    ]
    checkpoints = [f"{kind}-checkpoint" for kind in CHECKPOINTS]
    others = ["t-0", "t-1", "state", "staging", "meta.properties", ".kafka_cleanshutdown"]
    return [one for one in internal + checkpoints + others if one not in names]


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("work", [by_one_id, to_the_last_only, aborted])
def test_a_partition_that_was_copied_last_is_ahead(tmp_path, work, closed):
    copy = torn_copy(tmp_path, ["t-1"], work, closed=closed)
    (reason,) = reasons_of(copy, T1, AHEAD)
    assert repr(ID) in reason
    assert reasons_of(copy, T1, AHEAD) == [reason]  # It was opened, and closed cleanly.


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("before", [by_an_id_each, None])
def test_a_partition_is_ahead_with_ids_that_came_later(tmp_path, before, closed):
    copy = torn_copy(tmp_path, ["t-1"], by_an_id_each, closed=closed, before=before)
    for _ in range(2):
        reasons = reasons_of(copy, T1, AHEAD)
        assert len(reasons) == 2
        assert all("no transactional id has had that producer id" in one for one in reasons)


def test_of_many_producers_that_are_ahead_some_are_named(tmp_path):
    copy = torn_copy(tmp_path, ["t-1"], by_an_id_each, closed=True, count=15)
    reasons = reasons_of(copy, T1, AHEAD)
    assert len(reasons) == 11
    assert "5 more producers" in reasons[-1]


def test_a_partition_is_ahead_with_ids_of_a_later_block(tmp_path, small_segments):
    source, copy = tmp_path / "store", tmp_path / "copy"
    with open_store(source) as store:
        commit(store, 1)
        compact_state(store, ID)
    copy_store(source, copy, ignore=only(source, ["t-1"], without=True))
    with eoslog.open(source) as store:  # Another opening takes another block of ids.
        commit(store, 2, transactional_id="later")
    copy_store(source, copy, ignore=only(source, ["t-1"]), dirs_exist_ok=True)
    assert len(reasons_of(copy, T1, AHEAD)) == 1


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("work", [by_one_id, by_an_id_each, to_the_last_only])
def test_a_partition_that_was_copied_first_is_behind(tmp_path, work, closed):
    copy = torn_copy(tmp_path, all_but("t-1"), work, closed=closed)
    (reason,) = reasons_of(copy, T1, OLDER)
    assert repr(ID)[:-1] in reason
    assert reasons_of(copy, T1, OLDER) == [reason]


def test_a_partition_is_behind_although_nothing_else_knows_how_far_it_went(tmp_path):
    copy = torn_copy(tmp_path, all_but("t-1", "state"), by_one_id, closed=False)
    for checkpoint in copy.glob("*-checkpoint"):
        checkpoint.unlink()
    assert len(reasons_of(copy, T1, OLDER)) == 1


def test_a_partition_without_a_record_is_behind_where_its_topic_has_the_transaction(tmp_path):
    copy = torn_copy(tmp_path, all_but("t-1"), by_one_id, closed=True, before=None, count=1)
    assert len(reasons_of(copy, T1, OLDER)) == 1


@pytest.mark.parametrize("late", [["t-1"], all_but("t-1")])
def test_a_repair_leaves_a_torn_copy_and_says_what_to_do(tmp_path, late):
    copy = torn_copy(tmp_path, late, by_one_id, closed=False)
    for checkpoint in copy.glob("*-checkpoint"):
        checkpoint.unlink()
    shutil.rmtree(copy / "state" / "control", ignore_errors=True)
    answer = call("verify", "--store", copy, "--repair", "--json")
    assert answer.status == FAILED
    assert [one["advice"] for one in answer.json["refused"]] == [TORN_ADVICE]


def offsets_directory() -> str:
    return f"__consumer_offsets-{state_partition_of(GROUP)}"


def with_offsets(store: eoslog.Store, number: int) -> None:
    commit(store, number, group=GROUP)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_offsets_of_another_moment_than_their_transactions(tmp_path, closed, last):
    name = offsets_directory()
    late = [name] if last else all_but(name)
    copy = torn_copy(tmp_path, late, with_offsets, closed=closed, before=with_offsets)
    where = TopicPartition.parse(name)
    assert len(reasons_of(copy, where, AHEAD if last else OLDER)) == 1


def test_it_is_ahead_still_once_the_id_has_had_the_same_epochs(tmp_path):
    copy = torn_copy(tmp_path, ["t-1"], by_one_id, closed=True)
    with eoslog.open(copy) as store:
        for number in range(10):
            commit(store, number, (T0,))
    (reason,) = reasons_of(copy, T1, AHEAD)
    assert "was never decided" in reason


def test_a_transaction_that_its_coordinator_does_not_know_is_open(tmp_path):
    source, copy = tmp_path / "store", tmp_path / "copy"
    store = open_store(source)
    commit(store, 1)
    store.close()
    copy_store(source, copy, ignore=only(source, ["t-1"], without=True))
    store = eoslog.open(source)
    producer = store.producer(transactional_id=ID)
    producer.init_transactions()
    with eoslog.open(copy) as other:  # So that both have given out the same epoch.
        other.producer(transactional_id=ID).init_transactions()
    producer.begin_transaction()
    producer.send("t", b"open", partition=1)
    producer.prepare_transaction()
    store.close()
    shutil.rmtree(copy / "t-1", ignore_errors=True)
    copy_store(source, copy, ignore=only(source, ["t-1"]), dirs_exist_ok=True)
    (reason,) = reasons_of(copy, T1, AHEAD)
    assert "its coordinator has none" in reason


def named(store: eoslog.Store, number: int) -> None:
    with store.producer(name=ID) as producer:
        producer.send("t", b"%d" % number, partition=1)


def test_a_named_producer_has_written_under_an_epoch_that_it_was_not_given(tmp_path):
    copy = torn_copy(tmp_path, ["t-1"], named, closed=True, before=named)
    assert len(reasons_of(copy, T1, AHEAD)) == 1


def staged(store: eoslog.Store, number: int = 0) -> None:
    """A job with files for both partitions, and the offsets of a group."""
    values = [value_of(row) for row in range(20)]
    load(store, f"bulk-{number}", dict.fromkeys(BOTH, values), {GROUP: {T0: 1 + number}})


def staged_by_one(store: eoslog.Store, number: int) -> None:
    staged(store)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("work", [staged, staged_by_one])
@pytest.mark.parametrize("of_offsets", [True, False])
def test_a_partition_with_a_staged_job_that_nobody_decided_is_ahead(
    tmp_path, work, of_offsets, closed
):
    name = offsets_directory() if of_offsets else "t-1"
    copy = torn_copy(tmp_path, [name], work, closed=closed, before=work, count=1)
    where = TopicPartition.parse(name)
    (reason,) = reasons_of(copy, where, AHEAD)
    assert "no application has decided a job" in reason
    assert reasons_of(copy, where, AHEAD) == [reason]


def plain(store: eoslog.Store, number: int) -> None:
    with store.producer() as producer:
        for where in BOTH:
            producer.send(where.topic, b"%d" % number, partition=where.partition)
    with store.consumer(group=GROUP) as consumer:
        consumer.assign([T0])
        consumer.commit({T0: number})


def to_another_topic(store: eoslog.Store, number: int) -> None:
    commit(store, number, (T0, TopicPartition("u", 0)))


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("before", [plain, to_the_last_only])
def test_a_topic_without_any_marker_is_behind(tmp_path, before, closed):
    """The list of topics, copied as early, has nothing but the time of its creation."""

    def first(store: eoslog.Store, number: int) -> None:
        store.create_topic("u")
        before(store, number)
        with store.producer() as producer:
            producer.send("u", b"plain")

    early = ["state", "meta.properties", *(f"{one}-checkpoint" for one in CHECKPOINTS)]
    copy = torn_copy(
        tmp_path, all_but(*early), to_another_topic, closed=closed, before=first, count=1
    )
    assert len(reasons_of(copy, TopicPartition("u", 0), OLDER)) == 1


@pytest.mark.parametrize("closed", [True, False])
def test_a_group_with_plain_commits_alone_is_behind(tmp_path, closed):
    name = offsets_directory()
    copy = torn_copy(tmp_path, all_but(name), with_offsets, closed=closed, before=plain, count=1)
    assert len(reasons_of(copy, TopicPartition.parse(name), OLDER)) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_prepared_transaction_that_is_not_decided_is_ahead(tmp_path, commit):
    source, copy = tmp_path / "store", tmp_path / "copy"
    store = open_store(source)
    producer = store.producer(transactional_id=ID)
    producer.init_transactions()
    producer.begin_transaction()
    for where in BOTH:
        producer.send(where.topic, b"open", partition=where.partition)
    token = producer.prepare_transaction()
    copy_store(source, copy, ignore=only(source, ["t-1"], without=True))
    (store.commit_prepared if commit else store.abort_prepared)([token])
    copy_store(source, copy, ignore=only(source, ["t-1"]), dirs_exist_ok=True)
    store.close()
    (reason,) = reasons_of(copy, T1, AHEAD)
    assert "that was never decided" in reason
    with eoslog.open(copy) as store:
        decide = store.abort_prepared if commit else store.commit_prepared
        with pytest.raises(TransactionCoordinatorFencedError, match="nothing was decided"):
            decide([token])
    assert reasons_of(copy, T1, AHEAD) == [reason]
    if not commit:
        with eoslog.open(copy) as store:
            store.abort_transaction(ID)  # The way out.
            assert sound(store)


def test_a_partition_without_a_staged_job_that_is_complete_is_behind(tmp_path):
    source, copy = tmp_path / "store", tmp_path / "copy"
    open_store(source).close()
    copy_store(source, copy, ignore=only(source, ["t-0", "t-1"]))
    with eoslog.open(source) as store:
        staged(store)
    copy_store(source, copy, ignore=only(source, ["t-0", "t-1"], without=True), dirs_exist_ok=True)
    assert any(reasons_of(copy, where, OLDER) for where in BOTH)


# What only looks like it.


def sound(store: eoslog.Store) -> bool:
    return store.verify() == []


def compact_state(store: eoslog.Store, transactional_id: str) -> int:
    partition = parts_of(store).files.partitions.state_partition(
        state_partition_of(transactional_id)
    )
    partition.roll()
    commit(store, 0, transactional_id=transactional_id)
    return parts_of(store).files.state_log.compact(partition, lambda _: partition.log_end_offset)


def test_compaction_of_the_state_log_takes_decisions_away(tmp_path, small_segments):
    with open_store(tmp_path / "store") as store:
        for number in range(10):
            commit(store, number)
            commit(store, number, transactional_id="other")
        assert compact_state(store, ID) == 1
        assert sound(store)
        commit(store, 11, transactional_id="other")
        assert sound(store)
    with eoslog.open(tmp_path / "store") as store:
        assert sound(store)


def test_ids_that_expired(tmp_path, small_segments):
    with open_store(tmp_path / "store") as store:
        commit(store, 1)
        coordinator = parts_of(store).files.transactions
        assert expire_ids(coordinator, parts_of(store).files.state_log, 1 << 60, 1) == 1
        assert sound(store)
        commit(store, 2)
        assert sound(store)
        compact_state(store, ID)
        assert sound(store)


def test_retention_takes_markers_away(tmp_path):
    with open_store(tmp_path / "store") as store:
        for number in range(4):
            commit(store, number)
            engine_of(store).partition("t", 1).roll()
        commit(store, 5, transactional_id="other")
        engine_of(store).partition("t", 1).roll()
        partition = engine_of(store).partition("t", 1)
        for end in (3, 6, partition.log_end_offset):
            partition.delete_segments(end)
            assert sound(store)
    with eoslog.open(tmp_path / "store") as store:
        assert sound(store)


@pytest.mark.parametrize("prepared", [True, False])
def test_transactions_that_are_open_or_prepared(tmp_path, prepared):
    with open_store(tmp_path / "store") as store:
        commit(store, 1)
        producer = store.producer(transactional_id=ID)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"v", partition=1)
        producer.flush()
        assert sound(store)
        if prepared:
            producer.prepare_transaction()
            assert sound(store)
    with eoslog.open(tmp_path / "store") as store:
        assert sound(store)


def test_a_topic_that_was_deleted_and_made_again(tmp_path):
    with open_store(tmp_path / "store") as store:
        commit(store, 1)
        store.delete_topic("t")
        assert sound(store)
        store.create_topic("t", 2)
        assert sound(store)
        commit(store, 2, (T0,))
        assert sound(store)
        commit(store, 3, (T0,), transactional_id="other")
        assert sound(store)
        commit(store, 4)
        assert sound(store)


def test_a_topic_that_was_made_again_after_the_decision_has_none_of_it(tmp_path):
    with open_store(tmp_path / "store") as store:
        commit(store, 1)
        store.delete_topic("t")
        store.create_topic("t", 2)
        plain(store, 2)
        assert sound(store)
    with eoslog.open(tmp_path / "store") as store:
        assert sound(store)


def test_a_list_of_topics_that_was_lost(tmp_path):
    with open_store(tmp_path / "store") as store:
        commit(store, 1)
        store.delete_topic("t")
        store.create_topic("t", 2)
        plain(store, 2)
    (tmp_path / "store" / "state" / "topics.json").unlink()
    with eoslog.open(tmp_path / "store") as store:
        assert store.topics()["t"].created_ms is None
        assert sound(store)


def test_jobs_whose_lists_of_files_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("eoslog.staging.job.INLINE_MANIFEST_BYTES_MAX", 0)
    with open_store(tmp_path / "store") as store:
        staged(store)
        staged(store, 1)
        assert sound(store)
    with eoslog.open(tmp_path / "store") as store:
        assert sound(store)


def test_decisions_about_jobs_that_were_compacted(tmp_path, small_segments):
    with open_store(tmp_path / "store") as store:
        for number in range(3):
            staged(store, number)
        commit(store, 1, transactional_id="bulk-0")
        assert compact_state(store, "bulk-0") == 1
        assert sound(store)


def test_producer_ids_that_are_used_up(tmp_path):
    path = tmp_path / "store"
    with open_store(path) as store:
        commit(store, 1)
        partition = parts_of(store).files.partitions.state_partition(state_partition_of(ID))
        value = encode_transaction_value(
            producer_id=store.describe_transaction(ID).producer_id,
            producer_epoch=32_765,
            timeout_ms=60_000,
            state="Empty",
            partitions=None,
            last_update_ms=1,
            start_ms=-1,
            client_transaction_version=2,
        )
        partition.append_columns([value], [transaction_key(ID)])
        abandon(store)
    with eoslog.open(path) as store:
        for number in range(2, 6):
            commit(store, number)
        assert store.describe_transaction(ID).producer_epoch < 10
        assert sound(store)
    with eoslog.open(path) as store:
        assert sound(store)


def test_an_operator_ends_a_hanging_transaction(tmp_path):
    with open_store(tmp_path / "store") as store:
        commit(store, 1)
        known = store.describe_transaction(ID)
        partition = engine_of(store).partition("t", 1)
        partition.append_columns(
            [b"hangs"],
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        (hanging,) = partition.open_transactions()
        store.abort_transaction(topic="t", partition=1, start_offset=hanging.first_offset)
        assert sound(store)


@pytest.mark.parametrize("by_operator", [True, False])
def test_an_abort_of_an_open_transaction_that_is_not_decided(tmp_path, by_operator):
    """A broker's operator aborts at one partition, with the epoch of the batches."""
    with open_store(tmp_path / "store") as store:
        producer = store.producer(transactional_id=ID)
        producer.init_transactions()
        producer.begin_transaction()
        for where in BOTH:
            producer.send(where.topic, b"open", partition=where.partition)
        producer.flush()
        epoch = producer.producer_epoch + (not by_operator)
        engine_of(store).partition("t", 1).append_marker(producer.producer_id, epoch, 0, False,
                                              newer_epoch=not by_operator)  # fmt: skip
        found = [str(one["reason"]) for one in store.verify()]
        assert [AHEAD in one for one in found] == ([] if by_operator else [True])


def test_a_store_in_which_transactions_go_on(tmp_path):
    with open_store(tmp_path / "store") as store:
        stop = threading.Event()

        def go_on(name: str) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                commit(store, number, transactional_id=f"{name}-{number % 3}", group=GROUP)

        threads = [threading.Thread(target=go_on, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                assert store.verify() == []
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_staged_jobs_and_their_offsets(tmp_path):
    with open_store(tmp_path / "store") as store:
        staged(store)
        commit(store, 1)
        staged(store)
        assert sound(store)
    with eoslog.open(tmp_path / "store") as store:
        assert sound(store)


def test_records_that_compaction_took_from_under_a_reader_may_have_decided():
    """Those between what was read before and what was copied forward."""
    decided, partition = DecidedTransactions(), TopicPartition("t", 0)

    def follow(state: str, epoch: int) -> None:
        record = {
            "producer_id": 7,
            "producer_epoch": epoch,
            "state": state,
            "partitions": [partition] if state != "Empty" else None,
            "client_transaction_version": 2,
        }
        assert decided.follow("id", record, None, has_all=decided.has_all) is None

    def reason(epoch: int) -> str | None:
        return decided.is_undecided_marker(
            Marker(partition, 7, epoch, epoch - 1, commit=True, offset=0)
        )

    follow("Empty", 0)
    follow("PrepareCommit", 1)
    decided.note_gone([7])
    assert reason(2) is None  # The next record is not read yet.
    follow("Ongoing", 5)
    assert [reason(epoch) is None for epoch in range(1, 7)] == [True] * 5 + [False]
    follow("PrepareCommit", 6)
    assert reason(6) is None
