"""An interrupt (Ctrl-C) at any line of an opening leaves the store to all: nobody has the object.

The exception is kept, as a debugger or the block of an `except` does, and all that it refers to.
"""

import gc
import shutil
import signal
import sys

import pytest
from crash.interrupted_lines import interrupted_at
from crash.interrupted_steps import Steps
from short_form import short_form
from store_copies import copy_store

import eoslog
from eoslog import TopicPartition
from eoslog.session import lock as store_lock
from eoslog.store.store import parts_of

FILES = (
    "/eoslog/store/opening.py",
    "/eoslog/store/parts.py",
    "/eoslog/store/store.py",
    "/eoslog/store/files.py",
    "/eoslog/session/directory.py",
    "/eoslog/session/store_session.py",
    "/eoslog/session/lock.py",
    "/eoslog/session/process_slots.py",
    "/eoslog/transactions/state_index.py",
    "/eoslog/storage/lmdb_environment.py",
    "/eoslog/fs/file_lock.py",
    "/eoslog/storage/topic_registry.py",
    "/eoslog/storage/opened_partitions.py",
    "/eoslog/storage/log_opener.py",
    "/eoslog/store/checkpointer.py",
    "/eoslog/transactions/unresolved_transactions.py",
    "/eoslog/staging/commit.py",
    "/eoslog/staging/pending_jobs.py",
)


def is_ours(frame):
    return frame.f_code.co_filename.endswith(FILES)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("rows")
        store.producer(name="writer").append("rows", partition=0, values=[b"one"])
        with store.producer(transactional_id="loop") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("rows", b"two")
    return path


@pytest.fixture
def in_short(monkeypatch):
    """Whoever meets a lock does not wait for it."""
    monkeypatch.setattr(store_lock, "OPENING_TIMEOUT_S", 0.2)
    monkeypatch.setattr(
        store_lock.StoreLock.__init__, "__kwdefaults__", {"joining": True, "timeout_s": 0.2}
    )


# The short form's stride is a prime: it comes to another line in each turn of a loop.
@pytest.mark.parametrize("stride", short_form([211, 1], 211))
@pytest.mark.parametrize("stop", ["clean", "unclean", "absent"])
def test_an_interrupt_at_any_line_of_an_opening_leaves_the_store_to_all(
    path, in_short, stop, stride
):
    if stop == "unclean":
        copy = path.with_name("copy")
        with eoslog.open(path, durability="process"):
            copy_store(path, copy)
        path = copy
    elif stop == "absent":
        path = path.with_name("none")
    line = 1 - stride
    kept = None
    gc.disable()  # What it leaves must not wait for a collection of garbage.
    try:
        while line < 1 or kept is not None:
            line += stride
            kept = None
            if stop == "absent" and path.exists():
                shutil.rmtree(path)
            with interrupted_at(line, is_ours) as seen:
                try:
                    store = eoslog.open(path, create=stop == "absent", durability="process")
                except KeyboardInterrupt as error:
                    kept = error
            if kept is None:
                store.close()
            with eoslog.open(path, create=True, durability="process") as store:
                assert parts_of(store).files.session.first, seen[-1]
                if stop != "absent":
                    consumer = store.consumer()
                    consumer.assign([TopicPartition("rows", 0)])
                    assert [record.value for record in consumer.poll(0)] == [b"one", b"two"]
            if line % 50 < stride:
                gc.collect()
    finally:
        gc.enable()
    assert line > 100
    with eoslog.open(path) as store:
        assert not store.verify()


class InterruptedTwice:
    """Openings with an interrupt at a place, and another one a few places later."""

    def __init__(self, path):
        self.path = path
        self._first, self._second, self._to_come = Steps(), Steps(), []

    def __enter__(self):
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        gc.disable()
        return self

    def __exit__(self, *error):
        gc.enable()
        signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, _number, _frame):
        if self._to_come:
            self._second.arm(self._to_come.pop())
        raise KeyboardInterrupt

    def place_count(self):
        """Open it without an interrupt; return the number of places."""
        with self._first.armed(1 << 30):
            store = eoslog.open(self.path, durability="process")
        store.close()
        return self._first.count

    def opening_leaves_it(self, place, later):
        """Interrupt an opening; check that it can be opened. False if the opening ended before."""
        self._to_come[:] = [later]
        store = None
        try:
            with self._first.armed(place):
                store = eoslog.open(self.path, durability="process")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)  # Also the trace that begins as the first one ends.
        was_cut = self._first.count >= place
        if store is not None:
            store.close()
        store = None
        gc.collect()
        places = f"{self._first.last}, then {self._second.last}"
        with eoslog.open(self.path, durability="process") as store:
            assert parts_of(store).files.session.first, places
        return was_cut


# How many places after the first interrupt the second one comes: where the opening clears up.
LATER = (1, 2, 4, 7)


@pytest.mark.parametrize("stride", short_form([421, 211], 421))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_second_interrupt_as_it_clears_up_keeps_nothing_for_good(path, in_short, stride):
    """What it left open goes with the exception."""
    with InterruptedTwice(path) as opening:
        step, was_cut = 1, True
        while was_cut:
            for later in LATER:
                was_cut = opening.opening_leaves_it(step, later)
            step += stride
    assert step > 5 * stride
    with eoslog.open(path) as store:
        assert not store.verify()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_second_interrupt_as_an_opening_ends_keeps_nothing_for_good(path, in_short):
    """The background thread runs by then, and it has the store."""
    with InterruptedTwice(path) as opening:
        count = opening.place_count()
        for place in range(count - 12, count + 1):
            for later in LATER:
                opening.opening_leaves_it(place, later)
    with eoslog.open(path) as store:
        assert not store.verify()
