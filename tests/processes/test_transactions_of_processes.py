"""A process that dies, hangs or is fenced at each step of a transaction, while others live on.

The test's own process has the store open all the time: it sees what the member leaves, and ends it.
`docs/crash-points.md` has the steps.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.crew import Crew, Member, MemberError
from harness.member_main import Hand
from harness.waiting import eventually
from processes import store_calls
from processes.lanes import TOPIC, make_store

import eoslog
from eoslog import TopicPartition
from eoslog.bindings import shared_page
from eoslog.bindings.transaction_entry import (
    TransactionEntry,
    TransactionPart,
    encode_transaction_value,
)
from eoslog.common.prepared_transaction import PreparedTransaction, parse_token
from eoslog.errors import (
    EoslogError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    StoreInUseError,
)
from eoslog.producer.producer import ProducerInternals
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.state_key import DURABILITY, state_key, transaction_key
from eoslog.transactions.timeouts import abort_timed_out, expire_ids

ID = "wanted"
QUIET = {"eoslog.spare.segments": 0, "log.initial.task.delay.ms": 1 << 40}
BOTH = {"0": ["there"], "1": ["there"]}


@pytest.fixture
def durability(request) -> str:
    return str(getattr(request, "param", "process"))


both_durabilities = pytest.mark.parametrize("durability", ["process", "commit"], indirect=True)


@pytest.fixture
def path(tmp_path) -> Path:
    made = tmp_path / "store"
    make_store(made, 2)
    return made


@pytest.fixture
def crew(path, durability) -> Iterator[Crew]:
    with Crew(path, durability=durability, config=QUIET) as crew:
        yield crew


@pytest.fixture
def store(path, durability) -> Iterator[eoslog.Store]:
    with eoslog.open(path, durability=durability, config=QUIET) as store:
        parts_of(store).checkpointer.stop()  # What is done here is done by the test.
        yield store
        if not store.closed:
            assert store.verify() == []


# What a member does.


def entry_of(hand: Hand) -> TransactionEntry:
    entry = parts_of(hand.store).files.transactions.entries.find(ID)
    assert entry is not None
    return entry


def write_record(hand: Hand, state: str) -> None:
    """The id's next record, and nothing that follows from it."""
    entry = entry_of(hand)
    is_decision = state.startswith("Prepare")
    fields: dict[str, Any] = {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.producer_epoch + (1 if is_decision else 0),
        "last_producer_epoch": entry.producer_epoch,
        "timeout_ms": entry.timeout_ms,
        "state": state,
        "partitions": entry.partitions if is_decision else [],
        "last_update_ms": time.time_ns() // 1_000_000,
        "start_ms": entry.start_ms,
        "client_transaction_version": 2,
        "owner": entry.owner,
    }
    if not is_decision:
        fields["producer_epoch"], fields["last_producer_epoch"] = hand.kept["decided"]
    hand.kept["decided"] = (fields["producer_epoch"], fields["last_producer_epoch"])
    partition = parts_of(hand.store).files.state_log.partition_of(ID)
    partition.append_columns([encode_transaction_value(**fields)], [transaction_key(ID)])


def write_marker(hand: Hand, commit: bool, number: int) -> None:
    entry = entry_of(hand)
    engine_of(hand.store).partition(TOPIC, number).append_marker(
        entry.producer_id, hand.kept["decided"][0], None, commit
    )


POINTS = [
    "initialized",
    "registered",
    "flushed",
    "decided",
    "one marker",
    "all markers",
    "complete",
]
DECIDED = POINTS[POINTS.index("decided") :]


def go_to(hand: Hand, point: str, commit: bool = True, locked: bool = False) -> None:
    """Take the id up to a step of its transaction, as one that dies right there leaves it."""
    store_calls.init(hand, ID)
    if locked:
        entry_of(hand).lock.acquire()
    reached = POINTS.index(point)
    if reached >= POINTS.index("registered"):
        store_calls.begin(hand, ID)
        with entry_of(hand).lock:
            register_both(hand)
    if reached >= POINTS.index("flushed"):
        store_calls.send(hand, ID, TOPIC, BOTH)
    if reached >= POINTS.index("decided"):
        with entry_of(hand).lock:
            register_both(hand)  # Does nothing but refuse one that was fenced meanwhile.
            write_record(hand, "PrepareCommit" if commit else "PrepareAbort")
    if reached >= POINTS.index("one marker"):
        write_marker(hand, commit, 0)
    if reached >= POINTS.index("all markers"):
        write_marker(hand, commit, 1)
    if reached >= POINTS.index("complete"):
        write_record(hand, "CompleteCommit" if commit else "CompleteAbort")


def register_both(hand: Hand) -> None:
    coordinator, producer = parts_of(hand.store).files.transactions, hand.kept[ID]
    parts: list[TransactionPart] = [coordinator.part_of(TOPIC, number) for number in (0, 1)]
    entry_of(hand).add_partitions(producer.producer_id, producer.producer_epoch, parts)


def hold_lock(hand: Hand) -> None:
    entry_of(hand).lock.acquire()


def let_lock_go(hand: Hand) -> None:
    entry_of(hand).lock.release()


def prepared_once(hand: Hand) -> str:
    """A prepared transaction of the id; its token."""
    store_calls.init(hand, ID)
    store_calls.begin(hand, ID)
    store_calls.send(hand, ID, TOPIC, BOTH)
    return store_calls.prepare(hand, ID)


def is_replaced(hand: Hand) -> bool:
    """Whether the producer knows, without a call of its own."""
    parts_of(hand.store).files.state_log.look_after()
    parts_of(hand.store).files.transactions.entries.look_after_owners()
    return ProducerInternals(hand.kept[ID]).transactions.owner.fenced_because is not None


def expire_all(hand: Hand) -> int:
    files = parts_of(hand.store).files
    return expire_ids(files.transactions, files.state_log, time.time_ns() // 1_000_000 + 10, 1)


# What the test sees.


def committed(store: eoslog.Store) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {}
    with store.consumer() as consumer:
        for number in (0, 1):
            consumer.assign([eoslog.TopicPartition(TOPIC, number)])
            found[number] = []
            while records := consumer.poll(timeout=0):
                found[number] += [record.value for record in records]
    return found


def state_of(store: eoslog.Store) -> str:
    return store.describe_transaction(ID).transaction_state


def is_settled(store: eoslog.Store) -> bool:
    """Nothing is open or undecided, at the coordinator or at a partition."""
    if state_of(store) not in ("Empty", "CompleteCommit", "CompleteAbort"):
        return False
    return not any(store.partition(TOPIC, one).open_transactions() for one in (0, 1))


def one_more(store: eoslog.Store, value: bytes) -> None:
    """Take the id, and commit a transaction."""
    producer = store.producer(transactional_id=ID)
    producer.init_transactions()
    with producer.transaction():
        for number in (0, 1):
            producer.send(TOPIC, value, partition=number)
    producer.close()


def dead(member: Member, point: str, **others: Any) -> None:
    member.call(go_to, point, **others)
    member.kill()


# Death.


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("who", ["settle", "init", "join"])
@pytest.mark.parametrize("point", POINTS)
def test_a_process_dies_at_a_step_of_its_commit(store, crew, point, who):
    one_more(store, b"before")  # So that its entry is in memory here, and out of date.
    dead(crew.join(), point)
    expected = {number: [b"before"] for number in (0, 1)}
    if point in DECIDED:
        expected = {number: [*values, b"there"] for number, values in expected.items()}
    if who == "settle":
        # Once the decision is complete, what is left has no owner that must be waited for.
        ended = parts_of(store).files.transactions.recover_dead_peers()
        assert ended == (point not in ("initialized", "complete"))
        assert parts_of(store).files.session.slots.dead() == []
    elif who == "join":
        crew.join("third")  # Opening the store ends what the dead have left.
    if who != "init":
        assert is_settled(store)
        assert committed(store) == expected
    one_more(store, b"after")
    assert is_settled(store)
    assert committed(store) == {number: [*one, b"after"] for number, one in expected.items()}


@pytest.mark.parametrize("point", DECIDED)
def test_a_process_dies_at_a_step_of_its_abort(store, crew, point):
    dead(crew.join(), point, commit=False)
    parts_of(store).files.transactions.recover_dead_peers()
    assert is_settled(store)
    assert state_of(store) == "CompleteAbort"
    one_more(store, b"after")
    assert committed(store) == {0: [b"after"], 1: [b"after"]}


@both_durabilities
@pytest.mark.parametrize("point", POINTS)
def test_a_process_dies_with_the_lock_of_its_id(store, crew, point):
    dead(crew.join(), point, locked=True)
    begun_s = time.monotonic()
    one_more(store, b"after")
    # Who waited for the lock of one that is dead would wait for 30 s.
    assert time.monotonic() - begun_s < 20
    assert is_settled(store)
    there = [b"there"] if point in DECIDED else []
    assert committed(store) == {0: [*there, b"after"], 1: [*there, b"after"]}


@both_durabilities
@pytest.mark.parametrize("point", POINTS)
def test_all_processes_die_at_a_step(path, durability, crew, point):
    dead(crew.join(), point)
    with eoslog.open(path, durability=durability, config=QUIET) as store:
        assert is_settled(store)
        there = [b"there"] if point in DECIDED else []
        assert committed(store) == {0: there, 1: there}


def test_the_background_thread_settles_within_seconds(path, crew):
    with eoslog.open(path, durability=crew.durability, config=QUIET) as store:
        dead(crew.join(), "flushed")
        eventually(lambda: is_settled(store), "the background thread does not settle it")
        assert state_of(store) == "CompleteAbort"


def test_two_settle_the_same_dead_process(store, crew):
    second = crew.join()
    members = [crew.join() for _ in range(3)]
    for member in members:
        member.begin(go_to, "decided")
    for member in members:
        # The last of them has the id; the others were fenced in the middle of it.
        try:
            member.answer()
        except MemberError as error:
            assert error.kind in ("ProducerFencedError", "InvalidProducerEpochError"), error
        member.kill()
    second.begin(settle)
    parts_of(store).files.transactions.recover_dead_peers()
    second.answer()
    assert is_settled(store)
    assert parts_of(store).files.session.slots.dead() == []


def settle(hand: Hand) -> int:
    return parts_of(hand.store).files.transactions.recover_dead_peers()


def test_what_cannot_be_settled_now_is_settled_later(store, crew, monkeypatch):
    dead(crew.join(), "decided")
    refuse = EoslogError("the disk is full")
    coordinator = parts_of(store).files.transactions
    with monkeypatch.context() as patched:
        patched.setattr(type(coordinator), "_complete", lambda self, entry: refuse)
        assert coordinator.recover_dead_peers() == 0
        assert len(parts_of(store).files.session.slots.dead()) == 1
        assert state_of(store) == "PrepareCommit"
    assert coordinator.recover_dead_peers() == 1
    assert parts_of(store).files.session.slots.dead() == []
    assert committed(store) == {0: [b"there"], 1: [b"there"]}


# Fencing.


@pytest.mark.parametrize("point", ["initialized", "registered", "flushed"])
@pytest.mark.parametrize("call", ["commit", "send"])
def test_a_living_process_is_fenced_between_its_calls(store, crew, point, call):
    member = crew.join()
    member.call(go_to, point)
    if point == "initialized":
        member.call(store_calls.begin, ID)
    one_more(store, b"newer")
    with pytest.raises(MemberError) as raised:
        if call == "send":
            member.call(store_calls.send, ID, TOPIC, BOTH)
        member.call(store_calls.commit, ID)
    assert raised.value.kind == "ProducerFencedError"
    for part in (repr(ID), "was initialized again", "process ", " on "):
        assert part in str(raised.value)
    with pytest.raises(MemberError, match="ProducerFencedError"):
        member.call(store_calls.begin, ID)
    assert committed(store) == {0: [b"newer"], 1: [b"newer"]}
    assert is_settled(store)
    member.leave()


def test_a_fenced_process_is_told_without_a_call(store, crew):
    member = crew.join()
    member.call(go_to, "flushed")
    assert not member.call(is_replaced)
    one_more(store, b"newer")
    assert member.call(is_replaced)


def test_an_operator_elsewhere_terminates_a_process(store, crew):
    member = crew.join()
    member.call(go_to, "flushed")
    described = store.describe_transaction(ID)
    assert f"process {member.pid} on" in str(described.owner)
    store.abort_transaction(ID)
    with pytest.raises(MemberError, match="terminated by another process"):
        member.call(store_calls.commit, ID)
    assert store.describe_transaction(ID).owner is None
    assert committed(store) == {0: [], 1: []}


def test_a_living_process_goes_on_after_another_completed_its_decision(store, crew):
    """A disk that was full: the decision stands, the markers come from wherever there is room."""
    member = crew.join()
    member.call(go_to, "decided")
    parts_of(store).files.transaction_recovery.retry()
    assert is_settled(store)
    assert committed(store) == {0: [b"there"], 1: [b"there"]}
    assert store.describe_transaction(ID).owner is not None, "the id was taken from its producer"
    member.call(store_calls.commit, ID)  # The answer of the decision that stands.
    member.call(store_calls.commit_once, ID, TOPIC, {"0": ["more"]})
    assert committed(store) == {0: [b"there", b"more"], 1: [b"there"]}


# Time.


def test_another_process_aborts_what_timed_out(store, crew):
    member = crew.join()
    member.call(store_calls.stop_background)
    member.call(store_calls.init, ID, transaction_timeout_ms=50)
    member.call(store_calls.begin, ID)
    member.call(store_calls.send, ID, TOPIC, BOTH)
    member.signal(signal.SIGSTOP)
    coordinator = parts_of(store).files.transactions
    start_ms = store.describe_transaction(ID).current_transaction_start_time_ms
    assert abort_timed_out(coordinator, start_ms + 50) == 0
    assert abort_timed_out(coordinator, start_ms + 51) == 1
    assert is_settled(store)
    member.signal(signal.SIGCONT)
    with pytest.raises(MemberError) as raised:
        member.call(store_calls.commit, ID)
    assert raised.value.kind == "ProducerFencedError"
    assert "its timeout of 50 ms" in str(raised.value) or "terminated" in str(raised.value)


def test_another_process_forgets_an_unused_id(store, crew):
    member = crew.join()
    producer = store.producer(transactional_id=ID)
    producer.init_transactions()
    with producer.transaction():
        producer.send(TOPIC, b"one", partition=0)
    time.sleep(0.01)
    assert member.call(expire_all) == 1
    assert store.transactions() == []
    with pytest.raises(InvalidProducerIdMappingError), producer.transaction():
        producer.send(TOPIC, b"never", partition=0)
    one_more(store, b"two")
    assert committed(store) == {0: [b"one", b"two"], 1: [b"two"]}


def test_a_stopped_process_holds_up_its_own_id_alone(store, crew, monkeypatch):
    monkeypatch.setattr(shared_page, "LOCK_TIMEOUT_S", 0.3)
    member = crew.join()
    member.call(store_calls.stop_background)
    member.call(go_to, "flushed")
    member.call(hold_lock)
    member.signal(signal.SIGSTOP)
    producer = store.producer(transactional_id=ID)
    for _ in range(2):
        with pytest.raises(StoreInUseError, match=f"process {member.pid} is at work on it"):
            producer.init_transactions()
    with pytest.raises(StoreInUseError):
        store.abort_transaction(ID)
    with (
        pytest.raises(StoreInUseError),
        parts_of(store).files.transactions.entries.standing_still(),
    ):
        pass
    # What does not need the id goes on.
    assert state_of(store) == "Ongoing"
    assert [one.transactional_id for one in store.transactions()] == [ID]
    other = store.producer(transactional_id="other")
    other.init_transactions()
    with other.transaction():
        other.send(TOPIC, b"other", partition=0)
    parts_of(store).files.state_log.persist()
    parts_of(store).files.transaction_recovery.advance()
    assert abort_timed_out(parts_of(store).files.transactions, time.time_ns() // 1_000_000) == 0
    assert parts_of(store).files.transactions.recover_dead_peers() == 0
    # And nothing was harmed.
    member.signal(signal.SIGCONT)
    member.call(let_lock_go)
    member.call(store_calls.commit, ID)
    assert committed(store) == {0: [b"there", b"other"], 1: [b"there"]}
    producer.init_transactions()
    with pytest.raises(MemberError, match="ProducerFencedError"):
        member.call(store_calls.commit_once, ID, TOPIC, BOTH)


def test_a_commit_that_cannot_have_the_lock_is_aborted_and_made_again(store, crew, monkeypatch):
    monkeypatch.setattr(shared_page, "LOCK_TIMEOUT_S", 0.2)
    producer = store.producer(transactional_id=ID)
    producer.init_transactions()
    member = crew.join()
    member.call(store_calls.stop_background)
    member.call(take_lock_of_id)
    member.signal(signal.SIGSTOP)
    producer.begin_transaction()
    producer.send(TOPIC, b"first", partition=0)
    with pytest.raises(StoreInUseError):
        producer.commit_transaction()
    member.signal(signal.SIGCONT)
    member.call(let_lock_of_id_go)
    producer.abort_transaction()
    with producer.transaction():
        producer.send(TOPIC, b"again", partition=0)
    assert committed(store) == {0: [b"again"], 1: []}


def take_lock_of_id(hand: Hand) -> None:
    with parts_of(hand.store).files.transactions.entries.locked(ID) as entry:
        entry.lock.acquire()
        hand.kept["entry"] = entry


def let_lock_of_id_go(hand: Hand) -> None:
    hand.kept.pop("entry").lock.release()


# Prepared transactions.


def as_prepared(token: str) -> PreparedTransaction:
    return PreparedTransaction(ID, *parse_token(token))


@both_durabilities
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fate", ["lives", "dies"])
def test_another_process_decides_a_prepared_transaction(store, crew, commit, fate):
    member = crew.join()
    token = as_prepared(member.call(prepared_once))
    if fate == "dies":
        member.kill()
        assert parts_of(store).files.transactions.recover_dead_peers() == 0  # It waits on.
        assert parts_of(store).files.session.slots.dead() == []
    assert store.describe_transaction(ID).prepared
    assert (
        abort_timed_out(parts_of(store).files.transactions, time.time_ns() // 1_000_000 + 10**9)
        == 0
    )
    decide, other = store.commit_prepared, store.abort_prepared
    if not commit:
        decide, other = other, decide
    decide([token])
    decide([token])
    with pytest.raises(InvalidTxnStateError):
        other([token])
    there = [b"there"] if commit else []
    assert committed(store) == {0: there, 1: there}
    if fate == "lives":
        # Its own decision is a repetition, or comes too late.
        if commit:
            member.call(store_calls.commit, ID)
        else:
            member.call(store_calls.abort, ID)
        member.call(store_calls.commit_once, ID, TOPIC, {"1": ["next"]})
        assert committed(store) == {0: there, 1: [*there, b"next"]}
    else:
        one_more(store, b"next")


def test_a_prepared_transaction_is_taken_over_from_a_living_process(store, crew):
    member = crew.join()
    token = as_prepared(member.call(prepared_once))
    producer = store.producer(transactional_id=ID)
    assert producer.init_transactions(keep_prepared=True) == token
    with pytest.raises(MemberError, match="was initialized again"):
        member.call(store_calls.commit, ID)
    assert committed(store) == {0: [], 1: []}
    assert producer.complete_transaction(token)
    assert committed(store) == {0: [b"there"], 1: [b"there"]}


def test_who_took_a_prepared_transaction_over_may_die_too(store, crew):
    token = as_prepared(crew.join().call(prepared_once))
    second = crew.join()
    second.call(keep_prepared)
    crew.kill_all()
    assert parts_of(store).files.transactions.recover_dead_peers() == 0
    store.commit_prepared([token])
    assert committed(store) == {0: [b"there"], 1: [b"there"]}


def keep_prepared(hand: Hand) -> None:
    hand.kept[ID] = hand.store.producer(transactional_id=ID)
    hand.kept[ID].init_transactions(keep_prepared=True)


# The entry of each process, and the points from which a recovery reads.


def test_an_id_moves_to_and_fro(store, crew):
    member = crew.join()
    expected = []
    for round_number in range(20):
        member.call(store_calls.init, ID)
        for number in range(3):
            value = f"{round_number}:{number}"
            member.call(store_calls.commit_once, ID, TOPIC, {"0": [value]})
            expected.append(value.encode())
        one_more(store, b"%d" % round_number)
        expected.append(b"%d" % round_number)
    assert committed(store)[0] == expected


def test_an_open_transaction_goes_on_when_another_process_copies_its_record(store, crew):
    """As compaction does: sequences, and where it wrote, are kept."""
    producer = store.producer(transactional_id=ID)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(TOPIC, b"one", partition=0)
    producer.flush()
    member = crew.join()
    member.call(copy_record)
    producer.send(TOPIC, b"two", partition=0)
    producer.flush()
    producer.commit_transaction()
    assert committed(store)[0] == [b"one", b"two"]


def copy_record(hand: Hand) -> None:
    record = parts_of(hand.store).files.state_log.transaction(ID)
    assert record is not None
    partition = parts_of(hand.store).files.state_log.partition_of(ID)
    partition.append_columns([record.value], [transaction_key(ID)])


@pytest.mark.parametrize("point", POINTS)
def test_the_safe_point_stays_below_a_decision_of_another_process(store, crew, point):
    member = crew.join()
    member.call(go_to, point)
    recovery = parts_of(store).files.transaction_recovery
    state = parts_of(store).files.state_log.partition_of(ID)
    recovery.advance()
    before = recovery.safe_so_far(state.topic_partition)
    if point in ("decided", "one marker", "all markers"):
        assert before == state.log_end_offset - 1, "the decision is the last record"
    else:
        assert before == state.log_end_offset
    for number in (0, 1):
        partition = engine_of(store).partition(TOPIC, number)
        assert partition.recovery_point == partition.log_end_offset, "another's are synced too"
    member.kill()
    parts_of(store).files.transactions.recover_dead_peers()
    recovery.advance()
    assert recovery.safe_so_far(state.topic_partition) == state.log_end_offset


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("point", "left"), [("flushed", [0, 1]), ("decided", [0, 1]), ("one marker", [1])]
)
def test_what_waits_for_its_marker_is_seen_in_another_process(store, crew, point, left, commit):
    member = crew.join()
    member.call(go_to, point, commit)
    described = store.describe_transaction(ID)
    assert described.transaction_state.startswith("Ongoing" if point == "flushed" else "Prepare")
    assert list(described.topic_partitions) == [TopicPartition(TOPIC, number) for number in left]


def test_a_session_says_once_how_durable_it_is(path, durability, crew):
    members = [crew.join() for _ in range(3)]
    for number, member in enumerate(members):
        member.begin(store_calls.init, f"id-{number}")
    for member in members:
        member.answer()
    crew.all_leave()
    with eoslog.open(path, durability=durability, config=QUIET) as store:
        records = (
            parts_of(store).files.partitions.state_partition(0).fetch_records(0, 1000, 1 << 20)[0]
        )
        said = [one for one in records if one.key == state_key(DURABILITY, "")]
        assert len(said) == (durability == "process")


def test_no_transaction_moves_while_another_process_stands_still(store, crew):
    member = crew.join()
    member.call(store_calls.init, ID)
    with parts_of(store).files.transactions.entries.standing_still():
        member.begin(store_calls.commit_once, ID, TOPIC, BOTH)
        time.sleep(0.2)
        assert member.listen() == []
        assert committed(store) == {0: [], 1: []}
    member.answer()
    assert committed(store) == {0: [b"there"], 1: [b"there"]}


def test_producers_that_lost_their_ids_can_take_them_back(store, crew):
    member = crew.join()
    producer = store.producer(transactional_id=ID)
    producer.init_transactions()
    member.call(store_calls.init, ID)
    with pytest.raises(ProducerFencedError, match=f"process {member.pid} on"):
        producer.begin_transaction()
    one_more(store, b"back")
    with pytest.raises(MemberError, match="ProducerFencedError"):
        member.call(store_calls.begin, ID)


# A partition that was not closed cleanly, and is opened late.


def leave_hanging(hand: Hand) -> None:
    """A transaction at a partition of which the coordinator's log has lost the registration."""
    engine_of(hand.store).partition(TOPIC, 0).append_columns(
        [b"never"], producer_id=777, producer_epoch=3, base_sequence=0, transactional=True
    )


def open_transactions(hand: Hand) -> int:
    return len(hand.store.partition(TOPIC, 0).open_transactions())


def retry(hand: Hand) -> None:
    parts_of(hand.store).files.transaction_recovery.retry()


def unresolved(store: eoslog.Store) -> list[eoslog.TopicPartition]:
    file = parts_of(store).files.transaction_recovery.unresolved_file
    assert file is not None
    return list(file.read())


def test_who_is_alone_ends_at_once_what_nobody_knows(path, crew):
    member = crew.join()
    member.call(leave_hanging)
    member.kill()
    with eoslog.open(path, config=QUIET, durability=crew.durability) as store:
        assert store.partition(TOPIC, 0).open_transactions() == []
        assert unresolved(store) == []


@pytest.mark.parametrize("who", ["first", "joiner", "third"])
def test_what_nobody_knows_is_ended_while_all_stand_still(path, crew, who):
    member = crew.join()
    member.call(leave_hanging)
    member.kill()
    with eoslog.open(path, config=QUIET, durability=crew.durability) as store:
        parts_of(store).checkpointer.stop()
        joiner = crew.join()
        # Another process may have begun it just now, for all that this one knows.
        assert joiner.call(open_transactions) == 1
        assert unresolved(store) == [(TOPIC, 0)]
        third = crew.join()
        if who == "first":
            parts_of(store).files.transaction_recovery.retry()
        elif who == "joiner":
            joiner.call(retry)
        else:
            joiner.kill()
            third.call(retry)
        assert unresolved(store) == []
        assert store.partition(TOPIC, 0).open_transactions() == []
        third.call(retry)
        parts_of(store).files.transaction_recovery.retry()
        one_more(store, b"after")
        assert committed(store) == {0: [b"after"], 1: [b"after"]}


def test_a_transaction_of_this_session_is_left_alone(path, crew):
    """Begun in a partition that another process has opened, and not looked at yet."""
    member = crew.join()
    member.call(leave_hanging)
    member.kill()
    with eoslog.open(path, config=QUIET, durability=crew.durability) as store:
        parts_of(store).checkpointer.stop()
        joiner = crew.join()
        assert joiner.call(open_transactions) == 1
        producer = store.producer(transactional_id=ID)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"alive", partition=0)
        producer.flush()
        assert joiner.call(open_transactions) == 2
        joiner.call(retry)
        assert joiner.call(open_transactions) == 1
        producer.send(TOPIC, b"and well", partition=0)
        producer.commit_transaction()
        assert committed(store)[0] == [b"alive", b"and well"]


def test_a_prepared_transaction_of_before_is_known_to_a_joiner(path, crew):
    member = crew.join()
    token = as_prepared(member.call(prepared_once))
    member.kill()
    with eoslog.open(path, config=QUIET, durability=crew.durability) as store:
        parts_of(store).checkpointer.stop()
        joiner = crew.join()
        assert joiner.call(open_transactions) == 1
        joiner.call(retry)
        assert joiner.call(open_transactions) == 1
        store.commit_prepared([token])
        assert committed(store) == {0: [b"there"], 1: [b"there"]}


def test_every_process_renews_producer_ids_after_a_power_cut(path):
    """What durability "process" may have lost are epochs that partitions have seen."""
    with Crew(path, durability="process", config=QUIET) as crew:
        first = crew.join()
        before = first.call(store_calls.init, ID)
        first.kill()
        joined = [crew.join() for _ in range(2)]
        ids = [joined[0].call(store_calls.init, "another")[0]]
        ids += [joined[1].call(store_calls.init, ID)[0]]
        assert before[0] not in ids
        after = joined[1].call(store_calls.init, ID)
        assert after[0] == ids[1], "once in a process is enough"
