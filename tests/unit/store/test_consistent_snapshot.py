"""Store.snapshot: offsets that cut no transaction in two."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from harness.crew import Member
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.shared_page import HOLD_S
from eoslog.errors import UnknownTopicOrPartitionError
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store import consistent_snapshot
from eoslog.store.store import parts_of


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as opened:
        opened.create_topic("t", partitions=3)
        yield opened


def producer(store, transactional_id):
    made = store.producer(transactional_id=transactional_id)
    made.init_transactions()
    return made


def write(made, *partitions, value=b"v"):
    for number in partitions:
        made.append("t", partition=number, values=[value])


def committed_below(store, offsets):
    """The values that a read_committed reader sees below the offsets, by partition."""
    seen = {}
    for where, upper_bound in offsets.items():
        consumer = store.consumer()
        consumer.assign([where])
        values = []
        while consumer.position(where) < upper_bound:
            for record in consumer.poll(timeout=0):
                if record.offset < upper_bound:
                    values.append(record.value)
        seen[where] = values
    return seen


def test_a_quiet_store_is_cut_at_its_ends(store):
    made = producer(store, "one")
    with made.transaction():
        write(made, 0, 1)
    assert store.snapshot(["t"]) == {
        TopicPartition("t", 0): 2,
        TopicPartition("t", 1): 2,
        TopicPartition("t", 2): 0,
    }
    assert store.snapshot() == store.snapshot(["t"])


def test_a_topic_that_does_not_exist_is_named(store):
    with pytest.raises(UnknownTopicOrPartitionError, match="'nothing'"):
        store.snapshot(["nothing"])


def test_a_transaction_behind_an_open_one_is_left_out_everywhere(store):
    held, made = producer(store, "held"), producer(store, "made")
    held.begin_transaction()
    write(held, 0)
    with made.transaction():
        write(made, 0, 1, 2)
    # UnifiedLog 0 is held back in front of the committed one: it must not show in the others.
    assert set(store.snapshot(["t"]).values()) == {0}
    held.commit_transaction()
    assert store.snapshot(["t"]) == {
        TopicPartition("t", 0): 4,
        TopicPartition("t", 1): 2,
        TopicPartition("t", 2): 2,
    }


def test_leaving_one_out_leaves_out_those_that_hang_on_it(store):
    held, first, second = (producer(store, name) for name in ("held", "first", "second"))
    with second.transaction():
        write(second, 1, 2, value=b"whole")
    held.begin_transaction()
    write(held, 0)
    with first.transaction():
        write(first, 0, 1)
    with second.transaction():
        write(second, 1, 2)
    # `first` is cut out of partition 1, so `second` behind it there, and so out of partition 2.
    cuts = store.snapshot(["t"])
    assert committed_below(store, cuts) == {
        TopicPartition("t", 0): [],
        TopicPartition("t", 1): [b"whole"],
        TopicPartition("t", 2): [b"whole"],
    }
    held.abort_transaction()


def test_the_same_producer_before_and_behind_the_cut(store):
    held, made = producer(store, "held"), producer(store, "made")
    with made.transaction():
        write(made, 0, 1, value=b"before")
    held.begin_transaction()
    write(held, 0)
    with made.transaction():
        write(made, 0, 1, value=b"behind")
    cuts = store.snapshot(["t"])
    seen = committed_below(store, cuts)
    assert seen[TopicPartition("t", 0)] == seen[TopicPartition("t", 1)] == [b"before"]


def test_no_snapshot_cuts_a_transaction_while_others_commit(store):
    stop = threading.Event()
    begun = threading.Barrier(4)
    failures = []

    def work(name):
        made = producer(store, name)
        count = 0
        while not stop.is_set() and count < 2000:
            with made.transaction():
                write(made, 0, 1, 2, value=f"{name}-{count}".encode())
            count += 1
            if count == 20:
                begun.wait(timeout=60)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    try:
        begun.wait(timeout=60)
        snapshots = [store.snapshot(["t"]) for _ in range(40)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for cuts in snapshots[::8]:
        seen = [sorted(values) for values in committed_below(store, cuts).values()]
        if not seen[0] == seen[1] == seen[2]:
            failures.append(cuts)
    assert failures == []
    assert max(max(cuts.values()) for cuts in snapshots) > 0


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_another_process_deletes_meanwhile(store, named, again, monkeypatch):
    store.create_topic("u", partitions=2)
    first = store.topics()["u"]
    consistent_offsets = consistent_snapshot.consistent_offsets
    with Member() as other:
        other.run("store = eoslog.open(path, durability=None)", path=str(store.path))

        def interfere(*arguments):
            if store.topics().get("u") == first:
                other.run("store.delete_topic('u')")
                if again:
                    other.run("store.create_topic('u')")
            return consistent_offsets(*arguments)

        monkeypatch.setattr(consistent_snapshot, "consistent_offsets", interfere)
        if named:
            with pytest.raises(UnknownTopicOrPartitionError, match="'u' was deleted in the call"):
                store.snapshot(["t", "u"])
        else:
            partitions = [where for where in store.snapshot() if where.topic == "u"]
            assert partitions == ([TopicPartition("u", 0)] if again else [])


# Where transactions overlap.


class Chain:
    """Transactions of a store in the order of their steps; each write is a batch of its own."""

    def __init__(self, store, producers):
        self.store = store
        self._producers = [producer(store, f"chain-{number}") for number in range(producers)]
        self._open = {}
        self.records = {number: [] for number in range(3)}  # Offset, transaction.
        self.count = 0

    def step(self, number, action):
        """Write to a partition, or end what is open."""
        made = self._producers[number]
        if action < 3:
            if number not in self._open:
                made.begin_transaction()
                self._open[number] = self.count
                self.count += 1
            offset = self.store.partition("t", action).log_end_offset
            write(made, action)
            self.records[action].append((offset, self._open[number]))
        elif self._open.pop(number, None) is not None:
            (made.commit_transaction if action == 3 else made.abort_transaction)()

    def end_all(self):
        for number in list(self._open):
            self.step(number, 3)

    def highest(self):
        """The highest cuts that cut nothing, found by trying."""
        still_open = set(self._open.values())
        cuts = {
            number: min(
                [offset for offset, one in records if one in still_open],
                default=self.store.partition("t", number).log_end_offset,
            )
            for number, records in self.records.items()
        }
        while (lower := self._without_what_is_cut(cuts)) != cuts:
            cuts = lower
        return {TopicPartition("t", number): cut for number, cut in cuts.items()}

    def _without_what_is_cut(self, cuts):
        left_out = {
            one
            for number, records in self.records.items()
            for offset, one in records
            if offset >= cuts[number]
        }
        return {
            number: min([offset for offset, one in records if one in left_out] + [cuts[number]])
            for number, records in self.records.items()
        }

    def check_whole(self, cuts):
        for transaction in range(self.count):
            sides = {
                offset < cuts[TopicPartition("t", number)]
                for number, records in self.records.items()
                for offset, one in records
                if one == transaction
            }
            assert len(sides) <= 1, "a snapshot cuts a transaction in two"


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr(consistent_snapshot, "HOLD_S", 0.0)
    monkeypatch.setattr(consistent_snapshot, "_MOMENT_S", 0.0)


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12)
ONE_STORE = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ONE_STORE
@given(rounds=st.lists(STEPS, min_size=1, max_size=5))
def test_the_cuts_are_the_highest_that_cut_no_transaction(store, no_waiting, rounds):
    chain = Chain(store, 4)
    for steps in rounds:
        for step in steps:
            chain.step(*step)
        assert store.snapshot(["t"]) == chain.highest()
    chain.end_all()
    assert store.snapshot() == chain.highest()


@ONE_STORE
@given(steps=STEPS, during=st.lists(STEPS, min_size=1, max_size=4))
def test_what_transactions_do_during_a_snapshot_cuts_none(store, no_waiting, steps, during):
    """They go on each time that a snapshot looks at a partition."""
    chain = Chain(store, 4)
    for step in steps:
        chain.step(*step)
    before = store.snapshot(["t"])
    taken = [before]
    for steps_during in during:
        cuts = snapshot_meanwhile(store, [partial(chain.step, *step) for step in steps_during])
        assert all(cuts[where] >= offset for where, offset in before.items())
        before = cuts
        taken.append(cuts)
    chain.end_all()
    for cuts in taken:
        chain.check_whole(cuts)


def snapshot_meanwhile(store, steps):
    """A snapshot; after each of its looks at a partition another thread takes two of the steps."""
    thread = threading.current_thread()

    def looking(name):
        look_at = getattr(UnifiedLog, name).fget

        def look(partition):
            found = look_at(partition)
            if threading.current_thread() is thread:
                with ThreadPoolExecutor(1) as other:
                    for step in steps[:2]:
                        other.submit(step).result()
                del steps[:2]
            return found

        return property(look)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("last_stable_offset", "log_end_offset"):
            patch.setattr(UnifiedLog, name, looking(name))
        return store.snapshot(["t"])


@pytest.fixture
def looked_for(monkeypatch):
    """The ranges in which a snapshot looked for transactions, by partition."""
    found = []
    take_in = UnifiedLog.take_in_transactions

    def noted(partition, cuts, number, first, upper_bound):
        if first < upper_bound:
            found.append((partition.partition, first, upper_bound))
        return take_in(partition, cuts, number, first, upper_bound)

    monkeypatch.setattr(UnifiedLog, "take_in_transactions", noted)
    return found


def test_below_an_open_transaction_nothing_is_looked_for(store, looked_for):
    chain = Chain(store, 2)
    for number in (0, 1, 2, 3, 0, 1, 3):
        chain.step(0, number)
    chain.step(1, 0)
    end = store.partition("t", 0).log_end_offset
    assert store.snapshot(["t"]) == chain.highest()
    assert looked_for == [(0, end - 1, end)]
    chain.end_all()


def test_what_an_earlier_snapshot_found_is_not_looked_at_again(store, looked_for, no_waiting):
    chain = Chain(store, 3)
    for step in ((0, 0), (0, 1), (0, 3), (1, 0), (2, 0), (2, 1), (2, 3)):
        chain.step(*step)
    first = store.snapshot(["t"])
    assert first == chain.highest()
    assert min(one[1] for one in looked_for) == 0
    looked_for.clear()
    chain.step(2, 1)
    assert store.snapshot(["t"]) == first
    assert looked_for
    assert all(begin >= first[TopicPartition("t", where)] > 0 for where, begin, _ in looked_for)
    chain.end_all()


def hold(store):
    page = parts_of(store).files.session.shared
    begun_s = time.monotonic()
    assert page.begin_hold()
    assert not page.begin_hold(), "not again so soon"
    return begun_s


@pytest.mark.parametrize("way", ["append", "send", "offsets"])
def test_a_transaction_begins_when_a_hold_is_over(store, way):
    made, running = producer(store, "made"), producer(store, "running")
    running.begin_transaction()
    write(running, 0)
    made.begin_transaction()
    if way == "send":
        made.send("t", b"v", partition=0)
    begun_s = hold(store)
    running.commit_transaction()
    if way == "append":
        write(made, 0)
    elif way == "send":
        made.commit_transaction()
    else:
        made.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "group")
    assert time.monotonic() - begun_s >= HOLD_S
    if way != "send":
        made.abort_transaction()


def test_a_hold_is_for_the_transactions_of_all_processes(store):
    with Member() as other:
        other.run("store = eoslog.open(path, durability=None)", path=str(store.path))
        other.run("made = store.producer(transactional_id='made'); made.init_transactions()")
        other.run("made.begin_transaction()")
        begun_s = hold(store)
        other.run("made.append('t', 0, [b'v'])")
        assert time.monotonic() - begun_s >= HOLD_S
        other.run("made.commit_transaction(); store.close()")


def test_a_chain_of_overlaps_does_not_keep_a_snapshot_back(store):
    """Each of two producers ends its transaction once the other has the next one open."""
    stop = threading.Event()
    has_open = [threading.Event(), threading.Event()]

    def work(number):
        made = producer(store, f"link-{number}")
        while not stop.is_set():
            made.begin_transaction()
            write(made, number, 2)
            has_open[number].set()
            has_open[1 - number].wait(timeout=HOLD_S / 4)  # It may have to wait before it begins.
            has_open[1 - number].clear()
            made.commit_transaction()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        until_s = time.monotonic() + 10
        cuts = [store.snapshot(["t"])]
        while len({tuple(one.values()) for one in cuts}) < 3 and time.monotonic() < until_s:
            cuts.append(store.snapshot(["t"]))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len({tuple(one.values()) for one in cuts}) >= 3
    for where in cuts[0]:
        offsets = [one[where] for one in cuts]
        assert offsets == sorted(offsets)
