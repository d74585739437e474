"""A log that other processes write to, and that is only read here."""

import os
import random
import threading
import time
from pathlib import Path

import pytest
from crash.shared_log import FIELDS, SharedLog

from eoslog.bindings.tail_wait import next_records, wait_for_more
from eoslog.errors import FellBehindError, LogClosedError, OffsetOutOfRangeError, StoreReadOnlyError

EVER = 1 << 60


@pytest.fixture
def shared(tmp_path):
    return SharedLog(tmp_path / "shared")


class Follower:
    """A log opened for reading alone, which is attached to again when the engine asks for it."""

    def __init__(self, shared):
        self.shared = shared
        self.session = shared.session  # In which the store was taken up last.
        self.reattached = 0
        self.log = shared.follow()
        self.log.set_callbacks(self.no_row, self.reattach, lambda session: session == self.session)
        self.restore()

    def no_row(self, producer_id):
        raise AssertionError(f"who only reads needs no row of {producer_id}")

    def reattach(self):
        self.reattached += 1
        self.log.reattach()
        self.restore()

    def restore(self):
        while True:
            try:
                self.log.restore_producers(None, 0)
            except (FellBehindError, OffsetOutOfRangeError, FileNotFoundError):
                self.log.reattach()
            else:
                return


def append(log, producer_id=-1, sequence=-1, values=(b"v",), **named):
    return log.append_columns(
        list(values),
        timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
        **named,
    )


def all_of(log, committed):
    """Every record that a reader sees, as (offset, value)."""
    found, offset = [], log.log_start_offset
    while True:
        records, following, end = log.fetch_next(offset, 1000, 1 << 20, committed)
        found += [(one.offset, one.value) for one in records]
        if following == offset:
            assert offset == end
            return found
        offset = following


def seen_of(log):
    """What of a log any two that know all of it agree on."""
    return (
        (log.log_start_offset, log.log_end_offset, log.last_stable_offset),
        [(one.producer_id, one.first_offset) for one in log.open_transactions()],
        all_of(log, committed=True),
        all_of(log, committed=False),
    )


def listing(root: Path):
    """Each file and directory: when it was changed, and what is in it."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mtime_ns,
            path.stat().st_ctime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(root.rglob("*"))
    }


class Writer:
    """Random work of several producers, as a process does it that has the log open."""

    def __init__(self, shared, seed):
        self.random = random.Random(seed)
        self.log = shared.open()
        self.sequences = {}
        self.open = set()
        self.number = 0

    def step(self):
        kind = self.random.choices(
            ["append", "plain", "end", "roll", "delete"], [10, 2, 6, 1, 0.5]
        )[0]
        getattr(self, kind)()

    def values(self):
        count = self.random.choice((1, 1, 2, 20))
        self.number += count
        return [
            b"%d" % (self.number + one) + b"x" * self.random.choice((0, 9, 400))
            for one in range(count)
        ]

    def append(self):
        producer_id, values = self.random.randrange(8), self.values()
        sequence = self.sequences.get(producer_id, 0)
        append(self.log, producer_id, sequence, values, transactional=True)
        self.sequences[producer_id] = sequence + len(values)
        self.open.add(producer_id)

    def plain(self):
        append(self.log, values=self.values())

    def end(self):
        if self.open:
            producer_id = self.random.choice(sorted(self.open))
            self.open.discard(producer_id)
            commit = self.random.random() < 0.5
            self.log.append_marker(producer_id, 0, None, commit, timestamp_ms=1, newer_epoch=False)

    def roll(self):
        self.log.roll()

    def delete(self):
        end = self.log.log_end_offset
        upto = self.random.randrange(self.log.log_start_offset, end + 1)
        self.log.take_snapshot()
        start = self.log.first_to_stay(upto)
        if start > self.log.log_start_offset:
            self.log.advance_log_start(start)
        self.log.delete_segments(upto)


@pytest.mark.parametrize("seed", range(30))
def test_what_it_reads_is_what_the_writers_know(shared, seed):
    writer = Writer(shared, seed)
    writer.plain()
    followers = [Follower(shared)]
    for step in range(150):
        writer.step()
        if writer.random.random() < 0.5:
            for follower in followers:
                assert seen_of(follower.log) == seen_of(writer.log), step
        if step % 50 == 20:
            followers.append(Follower(shared))


@pytest.mark.parametrize("seed", range(3))
def test_beside_a_thread_that_writes(shared, seed):
    """Decided records come in order, none too early, none twice, none left out."""
    writer = Writer(shared, seed)
    writer.delete = lambda: None
    writer.plain()
    follower = Follower(shared)
    has_ended = threading.Event()

    def write():
        for _ in range(3000):
            writer.step()
        for producer_id in sorted(writer.open):
            writer.log.append_marker(producer_id, 0, None, False, timestamp_ms=1, newer_epoch=False)
        has_ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    found, offset, stopping = [], 0, False
    while not stopping or offset < follower.log.last_stable_offset:
        stopping = has_ended.is_set()
        records, offset, _ = follower.log.fetch_next(offset, 50, 1 << 16, True)
        found += [(one.offset, one.value) for one in records]
    thread.join()
    assert found == all_of(writer.log, committed=True)
    assert len(found) > 100


def test_nothing_of_the_store_is_opened_for_writing(shared):
    writer = Writer(shared, 1)
    for _ in range(100):
        writer.step()
    expected = seen_of(writer.log)
    writer.log.detach()
    del writer
    before = listing(shared.root)
    log = Follower(shared).log
    assert seen_of(log) == expected
    root = str(shared.root)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    assert {one[1] for one in maps if root in one[-1]} == {"r--s"}
    opened = [one for one in Path("/proc/self/fd").iterdir() if root in target_of(one)]
    assert {flags_of(one) & os.O_ACCMODE for one in opened} == {os.O_RDONLY}
    log.detach()
    assert listing(shared.root) == before


def target_of(descriptor):
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""  # The listing's own.


def flags_of(descriptor):
    said = Path(f"/proc/self/fdinfo/{descriptor.name}").read_text()
    return int(said.split("flags:")[1].split()[0], 8)


def test_calls_that_write_are_refused(shared):
    append(shared.open())
    log = Follower(shared).log
    for refused in (
        lambda: append(log),
        log.roll,
        lambda: log.delete_segments(1),
        lambda: log.advance_log_start(1),
        log.mark_deleted,
        lambda: setattr(log, "hold_offset", 0),
        lambda: log.append_marker(1, 0, None, True, timestamp_ms=1),
        log.store_abort_files,
        log.take_snapshot,
        log.flush,
        log.store_indexes,
        lambda: log.sync_up_to(1),
        lambda: log.make_durable(1),
        lambda: log.truncate(0),
        log.prepare_spare,
        log.close,
    ):
        with pytest.raises(StoreReadOnlyError, match="for reading alone"):
            refused()


PUBLISHED = ("active_base_offset", "active_valid_bytes", "active_reserved_bytes", "log_end_offset")


@pytest.mark.parametrize("rolls", [False, True])
def test_a_writer_that_stands_still_in_the_middle_of_publishing(shared, rolls):
    """Whatever it has stored so far, what was published before is read, and nothing else."""
    writer = shared.open()
    append(writer, values=[b"first"])
    early = Follower(shared)
    before = {name: shared.field(name) for name in FIELDS}
    if rolls:
        writer.roll()
    append(writer, values=[b"second"])
    after = {name: shared.field(name) for name in FIELDS}
    for count in range(len(PUBLISHED) + 1):
        shared.set_fields(**{name: before[name] for name in PUBLISHED})
        shared.set_fields(sequence=after["sequence"] | 1)
        shared.set_fields(**{name: after[name] for name in PUBLISHED[:count]})
        expected = [(0, b"first"), (1, b"second")][: 1 + (count == len(PUBLISHED))]
        late = Follower(shared)
        assert all_of(late.log, committed=True) == expected, count
        assert all_of(early.log, committed=True) == expected, count
    shared.set_fields(sequence=after["sequence"])
    append(writer, values=[b"third"])
    for follower in (early, late):
        assert [value for _, value in all_of(follower.log, committed=True)] == [
            b"first",
            b"second",
            b"third",
        ]


def test_what_a_page_says_of_another_session_does_not_count(shared):
    """It reads what was published, until the store was taken up in the next session."""
    writer = shared.open()
    append(writer, values=[b"first"])
    follower = Follower(shared)
    writer.detach()
    with shared.control.open("r+b") as page:
        page.write(bytes(4096))  # It is just being laid out.
    assert all_of(follower.log, committed=True) == [(0, b"first")]
    following = shared.next_session()
    append(following.open(clean=False), values=[b"second"])
    assert all_of(follower.log, committed=True) == [(0, b"first")]
    assert follower.reattached == 0
    follower.session = following.session
    assert all_of(follower.log, committed=True) == [(0, b"first"), (1, b"second")]
    assert follower.reattached == 1


def test_it_is_not_opened_before_the_session_has_it_open(shared):
    with pytest.raises(FellBehindError, match="no process of the session"):
        shared.follow()
    append(shared.open())
    shared.session = os.urandom(16)
    with pytest.raises(FellBehindError, match="no process of the session"):
        shared.follow()


def test_a_topic_that_was_deleted(shared):
    writer = shared.open()
    append(writer)
    follower = Follower(shared)
    writer.mark_deleted()
    with pytest.raises(LogClosedError, match="was deleted"):
        follower.log.fetch_next(0, 1, 1000, True)


def test_records_that_were_deleted_before_their_file_was_opened(shared):
    """The reader is told where the log begins, and that of the moment."""
    writer = Writer(shared, 0)
    for _ in range(4):
        append(writer.log, values=[b"x" * 1000] * 3)
        writer.roll()
    follower = Follower(shared)
    assert len(follower.log.segment_files()) == 5
    end = follower.log.log_end_offset
    writer.log.advance_log_start(end)
    writer.log.delete_segments(end)
    with pytest.raises(OffsetOutOfRangeError):
        follower.log.read(0)
    assert follower.log.log_start_offset == end


def test_waiting_finds_what_is_appended_and_leaves_no_wish(shared):
    writer = shared.open()
    append(writer)
    log = Follower(shared).log
    page = shared.page()
    before = shared.control.read_bytes()
    began = time.monotonic()
    assert wait_for_more(page, [log], [1], True, 0.1) == -1
    assert time.monotonic() - began > 0.09
    assert shared.control.read_bytes() == before
    late = threading.Timer(0.05, append, [writer])
    late.start()
    records, offset = next_records(page, log, 1, True, 10.0, 100, 1000)
    assert ([one.value for one in records], offset) == ([b"v"], 2)
    late.join()
