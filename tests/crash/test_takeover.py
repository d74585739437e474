"""A writer of a shared log died: whoever comes next makes good what it left, whatever it is."""

from __future__ import annotations

import os
import random
import resource
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from crash.shared_log import SharedLog
from harness.fork import Fork
from partition_files import all_records
from reference_model import batch_codec as codec

from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.shared_page import SharedPage
from eoslog.errors import FellBehindError

pytestmark = pytest.mark.crash

WRITERS = 3
_RECORD = struct.Struct("<qq")
_ACK = struct.Struct("<qqq")


def batch(number: int, producer_id: int = 1) -> bytes:
    values = [b"%d" % number + b"v" * 100]
    return codec.simple_batch(
        values,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=number,
        timestamp_ms=1000,
    )


def place(data: bytes, offset: int) -> bytes:
    """The batch as it stands in the log."""
    return struct.pack(">q", offset) + data[8:12] + bytes(4) + data[16:]


# What a writer leaves that dies at a step of the protocol of docs/processes.md.


def nothing(files: SharedLog) -> None:
    """Before it wrote anything."""


def grown_file(files: SharedLog) -> None:
    """W3: the file is longer than the page says."""
    with files.path(0).open("r+b") as file:
        file.truncate(20_000)


def half_a_batch(files: SharedLog) -> None:
    """W4."""
    with files.path(0).open("r+b") as file:
        file.seek(files.field("active_valid_bytes"))
        file.write(place(batch(3), 3)[:90])


def whole_batch(files: SharedLog) -> None:
    """W5, before the log end was stored; the valid bytes were."""
    data = place(batch(3), 3)
    valid = files.field("active_valid_bytes")
    with files.path(0).open("r+b") as file:
        file.seek(valid)
        file.write(data)
    files.set_fields(active_valid_bytes=valid + len(data))


def stale_size(files: SharedLog) -> None:
    """W5: the log end is stored, the valid bytes are not."""
    files.set_fields(active_valid_bytes=0)


def begun_segment(files: SharedLog) -> None:
    """R1: the next file is there, empty."""
    files.path(3).write_bytes(b"")


def reserved_segment(files: SharedLog) -> None:
    """R1: the next file is there, from a spare one."""
    files.path(3).write_bytes(bytes(20_000))


def cut_segment(files: SharedLog) -> None:
    """R2: the active file is cut, and the page does not know."""
    files.path(3).write_bytes(b"")
    with files.path(0).open("r+b") as file:
        file.truncate(files.field("active_valid_bytes"))


def half_a_roll(files: SharedLog) -> None:
    """R3: the new segment is named as the active one, with the size of the old one."""
    cut_segment(files)
    files.set_fields(active_base_offset=3)


STATES = [
    nothing,
    grown_file,
    half_a_batch,
    whole_batch,
    stale_size,
    begun_segment,
    reserved_segment,
    cut_segment,
    half_a_roll,
]


def let_go_of_descriptors(another: SharedLog) -> None:
    """Have no log's file open: room is made before another log is opened, which fails."""
    page = another.page()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            another.open(page)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize(
    "by", ["who was there", "who has the map alone", "who lagged behind", "who comes", "who reads"]
)
def test_what_a_dead_writer_left_is_made_good(
    tmp_path: Path, state: Callable[[SharedLog], None], by: str
) -> None:
    files = SharedLog(tmp_path / "log")
    lagging = files.open()
    log = files.open()
    for number in range(3):
        log.append_batch(batch(number))
    if by != "who lagged behind":
        assert lagging.log_end_offset == 3
    if by == "who has the map alone":
        another = SharedLog(tmp_path / "another")
        while str(files.path(0)) in map(str, map(Path.resolve, Path("/proc/self/fd").iterdir())):
            let_go_of_descriptors(another)  # Logs of tests before may come first.
        assert str(files.path(0)) in Path("/proc/self/maps").read_text()
    state(files)
    files.leave_odd()
    if by == "who comes":
        lagging = files.open()
    if by == "who reads":
        assert [record.offset for record in all_records(lagging)] == [0, 1, 2]
    # The dead one's batch may be sent again by its successor: it is in neither once too often.
    result = lagging.append_batch(batch(3))
    assert (result.base_offset, result.duplicate) == (3, False)
    assert lagging.append_batch(batch(2)).duplicate
    assert files.field("sequence") % 2 == 0
    log.append_batch(batch(4))
    for number in range(5, 300):  # Over rolls.
        lagging.append_batch(batch(number))
    for one in (log, lagging, files.open()):
        values = [record.value for record in all_records(one)]
        assert values == [b"%d" % number + b"v" * 100 for number in range(300)]
        assert one.verify() == []
        assert one.segment_count > 1
    log.detach()
    lagging.close()
    names = sorted(path.name for path in files.directory.glob("*.log"))
    assert names[0] == files.path(0).name
    assert files.path(3).name not in names or state is half_a_roll


def test_who_knows_all_records_goes_on_where_a_writer_died_in_a_roll(tmp_path: Path) -> None:
    """The log end tells nobody of it; what looks at more than records meets the page as it is."""
    files = SharedLog(tmp_path / "log")
    lagging = files.open()
    log = files.open()
    for number in range(3):
        log.append_batch(batch(number))
    assert lagging.log_end_offset == 3
    half_a_roll(files)
    files.leave_odd()
    assert [known.producer_id for known in lagging.producers()] == [1]
    assert files.field("sequence") % 2 == 0
    assert lagging.append_batch(batch(3)).base_offset == 3
    assert log.verify() == lagging.verify() == []


@pytest.mark.parametrize("died", [False, True])
def test_who_fell_behind_retention_begins_anew(tmp_path: Path, died: bool) -> None:
    """Stopped while others rolled, and deleted what it had not looked at; and died as they did."""
    files = SharedLog(tmp_path / "log")
    lagging = files.open()
    log = files.open()
    for number in range(500):
        log.append_batch(batch(number))
    log.delete_segments(log.active_base_offset)
    if died:
        files.leave_odd()
    with pytest.raises(FellBehindError):
        lagging.append_batch(batch(499))
    with pytest.raises(FellBehindError):
        lagging.read(0)
    lagging.reattach()
    lagging.restore_producers(None, 0)
    assert lagging.log_start_offset == log.log_start_offset > 0
    assert lagging.append_batch(batch(499)).duplicate
    assert lagging.append_batch(batch(500)).base_offset == 500
    assert [r.offset for r in all_records(lagging)] == [r.offset for r in all_records(log)]
    assert lagging.verify() == log.verify() == []


def write_on(files: SharedLog, writer: int, fork: Fork) -> None:
    """Append under the writer's id for ever, where it stopped; tell of each append."""
    noise = random.Random(os.getpid())
    log = files.open()
    known = log.producer(writer)
    sequence = 0 if known is None else known.last_sequence + 1
    while True:
        count = noise.randint(1, 5)
        values = [
            _RECORD.pack(writer, sequence + index) + bytes(noise.randint(0, 300))
            for index in range(count)
        ]
        log.append_columns(
            values, timestamp_ms=1, producer_id=writer, producer_epoch=0, base_sequence=sequence
        )
        sequence += count
        fork.say((writer, sequence))
        if noise.random() < 0.01:
            log.roll()
        elif noise.random() < 0.01:
            log.flush()


class Writers:
    """Processes that write, and what each was told."""

    def __init__(self, files: SharedLog) -> None:
        self._files = files
        self._running: dict[int, Fork] = {}
        self.acknowledged: dict[int, int] = {}
        for writer in range(WRITERS):
            self.start(writer)

    def start(self, writer: int) -> None:
        files = SharedLog(self._files.root, self._files.session)
        self._running[writer] = Fork(partial(write_on, files, writer))

    def kill(self, writer: int) -> None:
        child = self._running.pop(writer)
        assert child.kill()
        self.acknowledged.update(child.said)

    def listen(self) -> None:
        for child in self._running.values():
            self.acknowledged.update(child.listen())

    def stop(self) -> None:
        for writer in list(self._running):
            self.kill(writer)


class Reader:
    """Follows the log, and sees that each writer's records come once each, in order."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.position = 0
        self.next_of: dict[int, int] = {}

    def read_on(self) -> None:
        while self.position < self._log.log_end_offset:
            records, following = self._log.fetch_records(self.position, 100_000, 1 << 24)
            for record in records:
                if record.value != b"between":
                    writer, sequence = _RECORD.unpack_from(record.value)
                    assert self.next_of.get(writer, 0) == sequence, f"writer {writer}"
                    self.next_of[writer] = sequence + 1
            assert following > self.position
            self.position = following


def kill_for(seconds: float, seed: int, root: Path, kills_min: int = 0) -> int:
    """Kill for so long, and on a slow machine until so many were killed; how many it were."""
    print(f"seed {seed}")
    noise = random.Random(seed)
    files = SharedLog(root)
    log = files.open()
    reader = Reader(log)
    writers = Writers(files)
    kills = 0
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until or kills < kills_min:
            time.sleep(noise.random() * 0.01)
            victim = noise.randrange(WRITERS)
            writers.listen()
            writers.kill(victim)
            kills += 1
            log.append_columns([b"between"], timestamp_ms=1)
            reader.read_on()
            for writer, sequence in writers.acknowledged.items():
                assert reader.next_of.get(writer, 0) >= sequence, f"writer {writer} lost records"
            writers.start(victim)
    finally:
        writers.stop()
    log.append_columns([b"between"], timestamp_ms=1)
    reader.read_on()
    assert log.verify() == []
    log.close()
    again = SharedLog(root, os.urandom(16))
    (root / "shared").unlink()
    SharedPage(str(root / "shared"), again.session, True)
    reopened = again.open()
    assert not reopened.attached
    assert reopened.log_end_offset == reader.position
    assert reopened.verify() == []
    reopened.close()
    return kills


def test_writers_are_killed_at_any_instant(tmp_path: Path) -> None:
    assert kill_for(4, seed=1, root=tmp_path / "log", kills_min=6) > 5


@pytest.mark.soak
def test_writers_are_killed_for_long(tmp_path: Path) -> None:
    kills = sum(kill_for(60, seed, tmp_path / f"log-{seed}") for seed in range(10))
    print(f"{kills} kills")
