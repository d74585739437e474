"""A crash at each step of docs/crash-points.md, and what the next opening makes of it.

A power cut is simulated by cutting each log anywhere above what was synced: at a batch's end, or
within a batch. What is in LMDB and in the checkpoint files was synced when it was written.
"""

import itertools
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from coordinated_store import ID, CoordinatedStore, batches_of
from short_form import short_form
from staged_jobs import load
from store_copies import copy_store

from eoslog import TopicPartition
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.errors import StagedJobIncompleteError, StoreFullError
from eoslog.fs.checkpoint_file import RECOVERY_POINT, read_checkpoint
from eoslog.staging import pending_jobs
from eoslog.storage import opened_partitions
from eoslog.storage.producer_id_range import FIRST_PRODUCER_ID as FIRST
from eoslog.store import files as store_files
from eoslog.store.store import abandon, parts_of
from eoslog.transactions.state_key import APPLICATION, state_partition_of

PLACES = ("a-0", "a-1", "b-0", "b-1")
STATE = TopicPartition("__transaction_state", state_partition_of(ID))


def boundaries(partition):
    """Where batches end: (bytes, offset) of each place the log could be cut at."""
    found = [(0, 0)]
    for header, data in batches_of(partition):
        found.append((found[-1][0] + len(data), header.last_offset + 1))
    return found


def possible_cuts(partition):
    """(bytes, log end) of what a power cut may leave of a log: at least what was synced."""
    synced = partition.recovery_point
    return [(size, end) for size, end in boundaries(partition) if end >= synced]


def cut(store_path, where, size_bytes):
    """As the log was before; what its page says came later."""
    (store_path / "state" / "control" / str(where)).unlink(missing_ok=True)
    path = store_path / str(where) / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:size_bytes])


def checkpointed(at):
    """What the background thread does for the checkpoint files."""
    checkpointer = parts_of(at.store).checkpointer
    checkpointer.write_checkpoints()
    assert not checkpointer.metrics()["errors"]


def assert_settled(at):
    """Nothing is open, hangs, or waits anywhere; the store is sound."""
    for place in PLACES:
        partition = at.partition(place)
        assert partition.open_transactions() == []
        assert partition.last_stable_offset == partition.log_end_offset
    assert {one.transaction_state for one in at.store.transactions()} <= {
        "Empty",
        "CompleteCommit",
        "CompleteAbort",
    }
    assert at.store.verify() == []
    recovery = parts_of(at.store).files.transaction_recovery
    assert (recovery.left, recovery.unresolved) == (set(), set())


# Every prefix of every log, over one transaction.


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store after two transactions, abandoned, and per step what its logs could be cut to."""
    import eoslog

    path = tmp_path_factory.mktemp("whole") / "store"
    store = eoslog.open(path, create=True)
    at = CoordinatedStore(store)
    first = at.begun("a-0", "b-1")
    at.write(first, "a-0", value=b"y")
    logs = {
        STATE: parts_of(store).files.state_log.partition_of(ID),
        TopicPartition("a", 0): at.partition("a-0"),
        TopicPartition("b", 1): at.partition("b-1"),
    }
    steps = {"undecided": possible(logs)}
    second = at.end(first)
    steps["decided"] = possible(logs)
    at.write(second, "a-0", "b-1", value=b"second")
    steps["second open"] = possible(logs)
    at.end(second, commit=False)
    steps["second aborted"] = possible(logs)
    abandon(store)
    return path, steps


def possible(logs):
    return {where: possible_cuts(partition) for where, partition in logs.items()}


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("lmdb", ["kept", "lost"])
@pytest.mark.parametrize("step", ["undecided", "decided", "second open", "second aborted"])
def test_a_power_cut_leaves_any_part_of_what_was_not_synced(
    whole, open_store, store_path, step, lmdb
):
    path, steps = whole
    possible_of = steps[step]
    tried = 0
    for choice in itertools.product(*possible_of.values()):
        shutil.rmtree(store_path, ignore_errors=True)
        copy_store(path, store_path)
        if lmdb == "lost":
            shutil.rmtree(store_path / "state" / "lmdb")
        for where, (size_bytes, _) in zip(possible_of, choice, strict=True):
            cut(store_path, where, size_bytes)
        store = open_store("process")  # It recovers alike, and waits for no disk.
        at = CoordinatedStore(store)
        assert_settled(at)
        committed = [] if step == "undecided" else [b"x", b"y"]
        assert at.committed("a-0") == committed
        assert at.committed("b-1") == committed[:1]
        going_on = at.begun("a-0", "b-1")
        at.end(going_on)
        assert at.committed("a-0") == [*committed, b"x"]
        abandon(store)
        tried += 1
    assert tried > 3


# The process dies between two appends: files keep all that was written.


# How many batches of the state log, of a-0 and of b-1 there are after each step of one commit:
# T2 (epoch and init), T3, T4 twice, T6, T7 twice, T8.
COMMIT_STEPS = {
    "T1 the durability": (0, 0, 0, None),
    "T2 initialized": (1, 0, 0, None),
    "T3 registered": (2, 0, 0, False),
    "T4 first batch": (2, 1, 0, False),
    "T3 both registered": (3, 1, 0, False),
    "T4 both batches": (3, 1, 1, False),
    "T6 decided": (4, 1, 1, True),
    "T7 one marker": (4, 2, 1, True),
    "T7 the other marker": (4, 1, 2, True),
    "T7 both markers": (4, 2, 2, True),
    "T8 complete": (5, 2, 2, True),
}


@pytest.mark.parametrize("again", [False, True], ids=["", "and again while it is taken up"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_a_crash_after_each_step(open_store, store_path, step, commit, again, monkeypatch):
    at = CoordinatedStore(open_store("commit"))
    at.end(at.begun("a-0", "b-1"), commit)
    positions = {
        where: [size for size, _ in boundaries(partition)]
        for where, partition in {
            STATE: parts_of(at.store).files.state_log.partition_of(ID),
            TopicPartition("a", 0): at.partition("a-0"),
            TopicPartition("b", 1): at.partition("b-1"),
        }.items()
    }
    abandon(at.store)
    *kept, decided = COMMIT_STEPS[step]
    for (where, sizes), count in zip(positions.items(), kept, strict=True):
        cut(store_path, where, sizes[count])
    if again:
        die_while_taken_up(open_store, monkeypatch)
    at = CoordinatedStore(open_store("commit"))
    assert_settled(at)
    expected = [b"x"] if decided and commit else []
    for place in ("a-0", "b-1"):
        assert at.committed(place) == expected
        markers = len(at.markers(place))
        # Once decided, each has one; without a decision, only where something was open.
        assert markers == 1 if decided else markers <= 1
    found = at.init()
    assert found.producer_epoch == {None: kept[0], False: 2, True: 2}[decided]
    at.write(found, "a-0", value=b"after")
    at.end(found)
    assert at.committed("a-0") == [*expected, b"after"]


class Crash(BaseException):
    """The process is dead from here on."""


def die_while_taken_up(open_store, monkeypatch):
    """The opening dies when the first partition that a transaction wrote to was opened."""
    original = opened_partitions.OpenedPartitions.find_for_transaction

    def die(self, where):
        original(self, where)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(opened_partitions.OpenedPartitions, "find_for_transaction", die)
        try:
            store = open_store("commit")
        except Crash:
            return
        abandon(store)


# The safe recovery point.


def recovery_point_of_state(at):
    return read_checkpoint(at.store.path / RECOVERY_POINT).get(STATE, 0)


def test_a_marker_that_the_power_took_is_written_again_though_its_transaction_is_complete(
    open_store, store_path
):
    """The completion record was synced by a later decision; the marker was not."""
    at = CoordinatedStore(open_store("commit"))
    first = at.begun("a-0")
    at.end(first)
    partition = at.partition("a-0")
    (size_bytes, _), *_ = possible_cuts(partition)
    other = at.init()
    at.write(other, "b-0")
    at.end(other)
    state = parts_of(at.store).files.state_log.partition_of(ID)
    assert at.states().index("CompleteCommit") + 2 < state.recovery_point
    parts_of(at.store).files.state_log.persist()
    abandon(at.store)
    cut(store_path, TopicPartition("a", 0), size_bytes)
    at = CoordinatedStore(open_store("commit"))
    assert_settled(at)
    assert at.committed("a-0") == [b"x"]
    assert at.markers("a-0") == [(FIRST, 1, "COMMIT")]
    assert at.markers("b-0") == [(FIRST, 3, "COMMIT")]


def test_checkpoints_pass_a_decision_only_when_its_markers_are_synced(open_store, monkeypatch):
    at = CoordinatedStore(open_store("commit"))
    begun = at.begun("a-0")
    at.end(begun)
    state = parts_of(at.store).files.state_log.partition_of(ID)
    at.store.flush()
    assert state.recovery_point == state.log_end_offset
    # Written for another reason, as retention does, the checkpoint keeps below.
    parts_of(at.store).checkpointer.write_offsets()
    assert recovery_point_of_state(at) == 0
    checkpointed(at)
    end = state.log_end_offset
    assert recovery_point_of_state(at) == end
    # A decision that cannot be completed holds it back, whatever else is appended and synced.
    other = next(f"t{n}" for n in range(1000) if state_partition_of(f"t{n}") == STATE.partition)
    at.record(other, state="PrepareCommit", producer_epoch=4, partitions=[("b", 1)])
    with monkeypatch.context() as patch:
        patch.setattr(parts_of(at.store).files.partitions, "find_for_transaction", fail)
        assert not at.coordinator.complete(at.entry(other))
        parts_of(at.store).files.state_log.append(APPLICATION, ID, {"n": 1})
        checkpointed(at)
        assert recovery_point_of_state(at) == end < state.recovery_point
    assert at.coordinator.complete(at.entry(other))
    checkpointed(at)
    assert recovery_point_of_state(at) == state.log_end_offset == end + 3


def fail(*_arguments, **_named):
    raise StoreFullError("no space, as the test has it")


def test_a_partition_that_cannot_be_synced_holds_all_decisions_back(open_store, monkeypatch):
    at = CoordinatedStore(open_store("commit"))
    checkpointed(at)
    at.end(at.begun("a-0", "b-0"))
    before = recovery_point_of_state(at)
    with monkeypatch.context() as patch:
        for sync in ("flush", "sync_up_to"):
            patch.setattr(at.partition("b-0"), sync, fail)
        parts_of(at.store).checkpointer.write_checkpoints()
    assert recovery_point_of_state(at) == before
    at.store.flush()
    parts_of(at.store).checkpointer.write_checkpoints()
    assert (
        recovery_point_of_state(at)
        == parts_of(at.store).files.state_log.partition_of(ID).log_end_offset
    )


@pytest.mark.parametrize("failing", ["a-0", None])
def test_a_close_that_could_not_sync_everything_holds_decisions_back(
    open_store, monkeypatch, failing
):
    at = CoordinatedStore(open_store("commit"))
    at.end(at.begun("a-0", "b-0"))
    state = parts_of(at.store).files.state_log.partition_of(ID)
    end = state.log_end_offset
    if failing is None:
        at.store.close()
        assert recovery_point_of_state(at) == end
        return
    monkeypatch.setattr(at.partition(failing).producer_state, "persist", fail)
    with pytest.raises(StoreFullError):
        at.store.close()
    assert recovery_point_of_state(at) == 0
    at = CoordinatedStore(open_store("commit"))
    assert_settled(at)
    assert at.committed("a-0") == [b"x"]


# What cannot be done on opening.


def test_what_cannot_be_completed_on_opening_is_tried_again(open_store, monkeypatch):
    at = CoordinatedStore(open_store("commit"))
    at.record(state="PrepareCommit", producer_epoch=4, partitions=[("a", 0)])
    at.begun("b-0", transactional_id="open")
    abandon(at.store)
    with monkeypatch.context() as patch:
        patch.setattr(opened_partitions.OpenedPartitions, "find_for_transaction", fail)
        at = CoordinatedStore(open_store("commit"))
    assert at.entry().state == "PrepareCommit"
    recovery = parts_of(at.store).files.transaction_recovery
    assert recovery.left == {ID, "open"}
    recovery.retry()
    assert_settled(at)
    assert at.markers("a-0") == [(7, 4, "COMMIT")]
    assert at.markers("b-0") == [(FIRST, 1, "ABORT")]


def test_what_is_tried_again_is_not_a_later_transaction_of_the_id(open_store, monkeypatch):
    at = CoordinatedStore(open_store("commit"))
    at.begun("a-0")
    abandon(at.store)
    with monkeypatch.context() as patch:
        patch.setattr(store_files.TransactionCoordinator, "fence", fail)
        at = CoordinatedStore(open_store("commit"))
    recovery = parts_of(at.store).files.transaction_recovery
    assert recovery.left == {ID}
    later = at.begun("a-0")
    recovery.retry()
    at.end(later)
    recovery.retry()
    assert [kind for _, _, kind in at.markers("a-0")] == ["ABORT", "COMMIT"]
    assert recovery.left == set()


def test_a_disk_too_full_for_the_durability_lets_the_store_be_opened(open_store, monkeypatch):
    at = CoordinatedStore(open_store("process"))
    begun = at.begun("a-0")
    with begun.entry.lock:
        begun.entry.prepare(FIRST, 0)
    abandon(at.store)
    with monkeypatch.context() as patch:
        patch.setattr(store_files.CompactedLog, "append", fail)
        at = CoordinatedStore(open_store("commit"))
        # What is not in memory is left alone all the same.
        assert len(at.partition("a-0").open_transactions()) == 1
        assert parts_of(at.store).files.transaction_recovery.left == {ID}
        parts_of(at.store).files.transaction_recovery.advance()
    parts_of(at.store).files.transaction_recovery.retry()
    assert at.store.describe_transaction(ID).prepared
    assert parts_of(at.store).files.transaction_recovery.left == set()


@pytest.mark.parametrize("stop", ["close", "abandon"])
def test_a_transaction_that_nobody_registered_is_aborted_after_a_crash(open_store, stop):
    """Its Ongoing record was lost with the power. After a clean close it is the operator's."""
    at = CoordinatedStore(open_store("commit"))
    at.init()
    at.partition("a-0").log.append_columns(
        [b"lost"],
        timestamp_ms=1,
        producer_id=FIRST,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    at.store.flush()
    at.store.close() if stop == "close" else abandon(at.store)
    at = CoordinatedStore(open_store("commit"))
    if stop == "close":
        assert len(at.partition("a-0").open_transactions()) == 1
        return
    # Opened by whoever comes first; the id has gone on by then.
    at.end(at.begun("b-0"))
    assert at.markers("a-0") == [(FIRST, 1, "ABORT")]
    at.end(at.begun("a-0"))
    assert at.committed("a-0") == [b"x"]


def test_a_partition_that_could_not_be_ended_counts_as_unrecovered_at_the_close(
    open_store, store_path, monkeypatch
):
    at = CoordinatedStore(open_store("commit"))
    at.end(at.begun("a-0"))
    (size_bytes, _), *_ = possible_cuts(at.partition("a-0"))
    other = at.begun("b-0")
    at.end(other)
    abandon(at.store)
    cut(store_path, TopicPartition("a", 0), size_bytes)
    with monkeypatch.context() as patch:
        patch.setattr("eoslog.storage.unified_log.UnifiedLog.append_marker", fail)
        at = CoordinatedStore(open_store("commit"))
        assert at.partition("a-0").last_stable_offset == 0
        assert parts_of(at.store).files.transaction_recovery.unresolved == {
            TopicPartition("a", 0),
            STATE,
        }
        checkpointed(at)
        at.store.close()
    assert not (store_path / ".kafka_cleanshutdown").exists()
    at = CoordinatedStore(open_store("commit"))
    assert at.committed("a-0") == [b"x"]
    assert_settled(at)
    at.store.close()
    assert (store_path / ".kafka_cleanshutdown").exists()


def test_a_clean_opening_without_anything_undecided_opens_nothing(open_store):
    at = CoordinatedStore(open_store("commit"))
    at.end(at.begun("a-0"))
    at.store.close()
    store = open_store("commit")
    assert parts_of(store).files.partitions.opened() == []


def test_the_index_is_not_ahead_of_a_log_that_lost_its_tail(open_store, store_path):
    """With durability "process" nothing is synced: the index may know what the power took."""
    at = CoordinatedStore(open_store("process"))
    begun = at.init()
    size_bytes = parts_of(at.store).files.state_log.partition_of(ID).size_bytes
    at.write(begun, "a-0")
    at.end(begun)
    parts_of(at.store).files.state_log.persist()
    abandon(at.store)
    cut(store_path, STATE, size_bytes)
    at = CoordinatedStore(open_store("process"))
    assert at.entry().state == "Empty"
    assert at.identity()[:2] == (FIRST, 0)


def test_a_synced_index_is_never_ahead_of_its_log(open_store):
    at = CoordinatedStore(open_store("commit"))
    at.write(at.init(), "a-0")
    state = parts_of(at.store).files.state_log.partition_of(ID)
    assert state.recovery_point < state.log_end_offset
    parts_of(at.store).files.state_log.persist()
    assert state.recovery_point == state.log_end_offset


def test_rotated_ids_are_forgotten_only_with_rows_that_know_their_end(open_store, store_path):
    at = CoordinatedStore(open_store("commit"))
    at.record(producer_epoch=32765)
    begun = at.begun("a-0")
    at.partition("a-0").producer_state.persist()
    at.end(begun, commit=False)
    parts_of(at.store).files.transaction_recovery.advance()
    assert at.partition("a-0").producer(7) is None
    abandon(at.store)
    at = CoordinatedStore(open_store("commit"))
    assert at.partition("a-0").producer_state.restored_from == "rows"
    assert at.committed("a-0") == []
    assert_settled(at)


# All of it at random.


ACTIONS = {
    "transact": 30,
    "open": 4,
    "checkpoint": 4,
    "persist": 4,
    "rows": 4,
    "prepare": 2,
    "close": 1,
    "crash": 2,
    "cut": 3,
}


# A replay of a journal syncs more than the model knows.
WITHOUT_JOURNAL = {"eoslog__journal__bytes": 0}


class Model:
    """What was decided, and what a reader of committed data may see."""

    def __init__(self):
        self.committed = {}
        self.prepared = {}
        self.count = 0
        # Up to where the disk has each log. A partition that was recovered knows less of that.
        self.synced = {}


@pytest.mark.parametrize("seed", short_form(range(10), 0, 1, 2, 3))
def test_random_lives_of_a_store(open_store, store_path, seed):
    chance = random.Random(seed)
    model = Model()
    at = CoordinatedStore(open_store("commit", **WITHOUT_JOURNAL))
    going_on = {}
    for _ in range(60):
        (action,) = chance.choices(list(ACTIONS), list(ACTIONS.values()))
        if action in ("transact", "open", "prepare"):
            transact(at, model, going_on, chance, action)
        elif action == "checkpoint":
            checkpointed(at)
        elif action == "persist":
            parts_of(at.store).files.state_log.persist()
        elif action == "rows":
            at.partition(chance.choice(PLACES)).producer_state.persist()
        else:
            going_on = {}
            at = next_life(at, model, open_store, store_path, chance, action)
            check(at, model)
    at = next_life(at, model, open_store, store_path, chance, "cut")
    check(at, model)
    for token, (value, places) in model.prepared.values():
        at.store.commit_prepared([token])
        model.committed[value] = places
    model.prepared = {}
    check(at, model)
    assert_settled(at)


def transact(at, model, going_on, chance, action):
    name = chance.choice(["one", "two", "three"])
    if name in model.prepared:
        token, (value, places) = model.prepared.pop(name)
        commit = chance.random() < 0.7
        (at.store.commit_prepared if commit else at.store.abort_prepared)([token])
        if commit:
            model.committed[value] = places
        going_on.pop(name, None)
    begun = going_on.pop(name, None) or at.init(name)
    model.count += 1
    value = b"%d" % model.count
    places = tuple(chance.sample(PLACES, chance.randint(1, 3)))
    at.write(begun, *places, value=value)
    if action == "transact":
        commit = chance.random() < 0.7
        going_on[name] = at.end(begun, commit)
        if commit:
            model.committed[value] = places
    elif action == "prepare":
        with begun.entry.lock:
            begun.entry.prepare(begun.producer_id, begun.producer_epoch)
        token = PreparedTransaction(
            transactional_id=name,
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
        )
        model.prepared[name] = (token, (value, places))


def next_life(at, model, open_store, store_path, chance, action):
    cuts = {}
    for partition in parts_of(at.store).files.partitions.opened():
        where = partition.topic_partition
        synced = max(partition.recovery_point, model.synced.get(where, 0))
        model.synced[where] = partition.log_end_offset if action == "close" else synced
        if action == "cut":
            possible = [size for size, end in boundaries(partition) if end >= synced]
            cuts[where] = chance.choice(possible) + chance.choice([0, 0, 30])
    if action == "close":
        at.store.close()
    else:
        abandon(at.store)
    for where, size_bytes in cuts.items():
        cut(store_path, where, size_bytes)
    return CoordinatedStore(open_store("commit", **WITHOUT_JOURNAL))


def check(at, model):
    for place in reversed(PLACES):
        expected = sorted(value for value, places in model.committed.items() if place in places)
        held_back = any(place in places for _, (_, places) in model.prepared.values())
        found = at.committed(place)
        assert len(found) == len(set(found))
        if held_back:
            assert set(found) <= set(expected)
        else:
            assert sorted(found) == expected


@pytest.mark.parametrize("next_durability", ["process", "commit"])
def test_epochs_that_a_power_cut_took_are_not_given_out_again(
    open_store, store_path, next_durability
):
    """Nothing was synced: the partition has seen epochs that the state log never heard of."""
    at = CoordinatedStore(open_store("process"))
    begun = at.init()
    state_bytes = parts_of(at.store).files.state_log.partition_of(ID).size_bytes
    for _ in range(3):
        at.write(begun, "a-0")
        begun = at.end(begun)
    abandon(at.store)
    cut(store_path, STATE, state_bytes)
    at = CoordinatedStore(open_store(next_durability))
    assert at.identity()[:2] == (FIRST, 0)
    found = at.init()
    assert found[1:3] == (FIRST + 1000, 0)  # Of a new block.
    assert at.identity()[3] == FIRST
    at.write(found, "a-0", value=b"after")
    at.end(found)
    assert at.committed("a-0")[-1] == b"after"
    # Once is enough.
    assert at.init()[1:3] == (FIRST + 1000, 2)
    assert at.init(expected=(FIRST + 1000, 2))[1:3] == (FIRST + 1000, 3)


@pytest.mark.parametrize(("durability", "stop"), [("commit", "abandon"), ("process", "close")])
def test_otherwise_an_id_keeps_its_producer_id(open_store, durability, stop):
    at = CoordinatedStore(open_store(durability))
    at.end(at.begun("a-0"))
    at.store.close() if stop == "close" else abandon(at.store)
    at = CoordinatedStore(open_store(durability))
    assert at.init()[1:3] == (FIRST, 2)


def test_a_marker_written_on_opening_holds_its_decision_until_it_is_synced(open_store, store_path):
    at = CoordinatedStore(open_store("commit"))
    at.end(at.begun("a-0"))
    (size_bytes, _), *_ = possible_cuts(at.partition("a-0"))
    at.end(at.begun("b-0"))
    abandon(at.store)
    cut(store_path, TopicPartition("a", 0), size_bytes)
    at = CoordinatedStore(open_store("commit"))
    parts_of(at.store).checkpointer.write_offsets()
    assert recovery_point_of_state(at) == 0
    checkpointed(at)
    assert at.partition("a-0").recovery_point == at.partition("a-0").log_end_offset
    checkpointed(at)
    assert (
        recovery_point_of_state(at)
        == parts_of(at.store).files.state_log.partition_of(ID).log_end_offset
    )


def test_a_partition_opened_while_points_are_raised_is_synced_too(open_store, monkeypatch):
    """Between the look at the state log's end and the syncs, a whole transaction may pass."""
    at = CoordinatedStore(open_store("commit"))
    at.init()
    recovery = parts_of(at.store).files.transaction_recovery
    coordinator = parts_of(at.store).files.transactions
    original = coordinator.take_rotated

    def meanwhile():
        at.end(at.begun("b-1"))
        return original()

    monkeypatch.setattr(coordinator, "take_rotated", meanwhile)
    recovery.advance()
    assert at.partition("b-1").recovery_point == at.partition("b-1").log_end_offset
    assert (
        recovery.safe_offset(STATE.partition)
        < parts_of(at.store).files.state_log.partition_of(ID).log_end_offset
    )


def test_rotated_ids_are_kept_for_later_if_a_sync_fails(open_store, monkeypatch):
    at = CoordinatedStore(open_store("commit"))
    at.record(producer_epoch=32765)
    at.end(at.begun("a-0"))
    recovery = parts_of(at.store).files.transaction_recovery
    with monkeypatch.context() as patch:
        patch.setattr(at.partition("a-0"), "sync_up_to", fail)
        with pytest.raises(StoreFullError):
            recovery.advance()
    assert at.partition("a-0").producer(7) is not None
    recovery.advance()
    assert at.partition("a-0").producer(7) is None


def test_many_records_of_transactions_make_a_checkpoint_due(open_store, monkeypatch):
    monkeypatch.setattr("eoslog.store.checkpointer.STATE_RECORDS_BEHIND_MAX", 10)
    at = CoordinatedStore(open_store("commit", eoslog__checkpoint__interval__ms=5))
    going_on = at.init()
    state = parts_of(at.store).files.state_log.partition_of(ID)
    deadline_s = time.monotonic() + 60
    while recovery_point_of_state(at) <= 10:
        assert time.monotonic() < deadline_s
        at.write(going_on, "a-0")
        going_on = at.end(going_on)
        time.sleep(0.01)
    assert recovery_point_of_state(at) <= state.recovery_point


def test_what_was_never_decided_is_ended_before_a_job_that_is_completed_on_opening(
    open_store, store_path, monkeypatch
):
    """Its partition is opened for the job, while the dead process still counts as one: readers
    must not wait for the background thread.
    """
    at = CoordinatedStore(open_store("commit"))
    producer = at.store.producer(transactional_id=ID)
    producer.init_transactions()
    state = parts_of(at.store).files.partitions.state_partition(STATE.partition)
    size_bytes = boundaries(state)[-1][0]
    producer.begin_transaction()
    producer.append("a", partition=0, values=[b"never decided"])

    def full(*_, **__):
        raise StoreFullError("no room")

    monkeypatch.setattr(pending_jobs, "adopt_files", full)
    with pytest.raises(StagedJobIncompleteError):  # Decided, and completed later.
        load(at.store, "bulk", {("a", 0): [b"decided"]})
    abandon(at.store)
    monkeypatch.undo()
    # The power went: the record that lists the transaction's partitions was not synced.
    cut(store_path, STATE, size_bytes)
    at = CoordinatedStore(open_store("commit"))
    assert_settled(at)
    with at.store.consumer() as consumer:
        consumer.assign([TopicPartition("a", 0)])
        assert [record.value for record in consumer.poll(timeout=0)] == [b"decided"]


@pytest.mark.parametrize("how", ["append", "send"])
def test_a_lost_registration_does_not_refuse_the_ids_next_transaction(open_store, store_path, how):
    """The partition is first opened while another id is at work, so that recovery cannot end what
    is open there: the id's own next transaction does.
    """
    at = CoordinatedStore(open_store("commit"))
    at.begun("b-0", transactional_id="at work")
    producer = at.store.producer(transactional_id=ID)
    producer.init_transactions()
    size_bytes = boundaries(parts_of(at.store).files.partitions.state_partition(STATE.partition))[
        -1
    ][0]
    producer.begin_transaction()
    producer.append("a", partition=0, values=[b"never decided"])
    abandon(at.store)
    cut(store_path, STATE, size_bytes)
    at = CoordinatedStore(open_store("commit"))
    producer = at.store.producer(transactional_id=ID)
    producer.init_transactions()
    with ThreadPoolExecutor(1) as other, at.coordinator.entries.locked("at work"):
        opened = other.submit(at.partition, "a-0").result()
        assert len(opened.open_transactions()) == 1
    producer.begin_transaction()
    if how == "append":
        producer.append("a", partition=0, values=[b"new"])
    else:
        producer.send("a", partition=0, value=b"new")
    producer.commit_transaction()
    assert at.committed("a-0") == [b"new"]
    producer.close()
    assert_settled(at)
