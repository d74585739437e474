"""Slots of processes: a free lock is death, and what the file says is for people."""

import os
import time

import pytest
from harness.crew import Member
from harness.fork import Fork, in_child
from transaction_files import full_disk

from eoslog.errors import CorruptRecordError
from eoslog.session import process_slots
from eoslog.session.process_slots import ProcessSlots

SESSION = b"0123456789abcdef"
SLOTS = """
from eoslog.session.process_slots import ProcessSlots
from pathlib import Path
slots = ProcessSlots(Path(path), b"0123456789abcdef")
"""


@pytest.fixture
def other(tmp_path):
    with Member() as process:
        process.run(SLOTS, path=str(tmp_path))
        yield process


def own_of(process):
    return bytes.fromhex(process.value("slots.own.hex()"))


def test_a_process_knows_itself(tmp_path):
    slots = ProcessSlots(tmp_path, SESSION)
    assert len(slots.own) == 16
    assert slots.alive(slots.own)
    assert slots.dead() == slots.others() == []
    found = slots.find(slots.own)
    assert (found.process_id, found.session, found.slot) == (os.getpid(), SESSION, slots.own)
    assert abs(found.opened_ms - time.time() * 1000) < 60_000
    assert slots.describe(slots.own).startswith(f"process {os.getpid()} on {found.host}, which")
    with pytest.raises(ValueError, match="lives"):
        slots.settle(slots.own)
    slots.release()
    slots.release()
    assert not slots.alive(slots.own)


def test_what_is_known_of_processes_that_came_and_went_does_not_gather(tmp_path, monkeypatch):
    monkeypatch.setattr(process_slots, "_DESCRIPTIONS_MAX", 2)
    slots = ProcessSlots(tmp_path, SESSION)
    for _ in range(5):
        one = ProcessSlots(tmp_path, SESSION)
        one.release()
        assert slots.find(one.own).process_id
        slots.settle(one.own)
        assert slots.find(one.own).process_id
        assert len(slots._descriptions) <= 2


def test_the_others_are_seen_while_they_live(tmp_path, other):
    slots = ProcessSlots(tmp_path, SESSION)
    theirs = own_of(other)
    assert slots.alive(theirs)
    assert [one.process_id for one in slots.others()] == [other.pid]
    assert slots.dead() == []
    assert other.value("[one.process_id for one in slots.others()]") == [os.getpid()]
    other.kill()
    assert not slots.alive(theirs)
    assert slots.others() == []
    assert [one.slot for one in slots.dead()] == [theirs]
    assert slots.describe(theirs).startswith(f"process {other.pid} on ")
    slots.settle(theirs)
    slots.settle(theirs)
    assert slots.dead() == []
    # Whoever knew it can still say who it was.
    assert slots.describe(theirs).startswith(f"process {other.pid} on ")
    slots.release()


def test_the_producer_ids_of_the_others_that_live(tmp_path, other):
    slots = ProcessSlots(tmp_path, SESSION)
    other.run("slots.note_producer_ids(range(5000, 6000)); slots.note_producer_ids(range(10, 20))")
    slots.note_producer_ids(range(100, 200))
    assert slots.producer_ids_of_others() == [range(10, 20), range(5000, 6000)]
    assert slots.describe(own_of(other)).startswith(f"process {other.pid} on ")
    theirs = tmp_path / "processes" / own_of(other).hex()
    theirs.write_bytes(theirs.read_bytes()[:-1])  # The last line is not whole yet.
    assert slots.producer_ids_of_others() == [range(5000, 6000)]
    other.kill()
    assert slots.producer_ids_of_others() == []
    slots.release()


@pytest.mark.parametrize("line", [b"10 2\xff", b"10", b"10 20 30", b""])
def test_a_damaged_block_of_producer_ids_is_named(tmp_path, other, line):
    """As an error for which the producers are kept, and the partition is opened."""
    slots = ProcessSlots(tmp_path, SESSION)
    other.run("slots.note_producer_ids(range(10, 20))")
    theirs = tmp_path / "processes" / own_of(other).hex()
    theirs.write_bytes(theirs.read_bytes() + line + b"\n")
    with pytest.raises(CorruptRecordError, match="no block of producer ids") as caught:
        slots.producer_ids_of_others()
    assert caught.value.path == str(theirs)
    slots.release()


def test_producer_ids_that_found_no_room_are_noted_with_the_next(tmp_path, other):
    slots = ProcessSlots(tmp_path, SESSION)
    noted = "[[one.start, one.stop] for one in slots.producer_ids_of_others()]"
    with full_disk():
        slots.note_producer_ids(range(10, 20))
    assert other.value(noted) == []
    slots.note_producer_ids(range(20, 30))
    assert other.value(noted) == [[10, 20], [20, 30]]
    slots.release()


def test_who_has_left_counts_as_dead_until_it_is_settled(tmp_path, other):
    slots = ProcessSlots(tmp_path, SESSION)
    other.run("slots.release()")
    assert [one.process_id for one in slots.dead()] == [other.pid]
    slots.settle(own_of(other))
    assert slots.dead() == []
    slots.release()


def test_a_slot_that_nobody_knows_is_dead(tmp_path):
    slots = ProcessSlots(tmp_path, SESSION)
    assert not slots.alive(bytes(16))
    assert slots.describe(bytes(16)) == f"a process that is gone (slot {'00' * 16})"
    slots.release()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"pid": []}', b"[1]"])
def test_a_slot_that_says_nothing_is_dead_all_the_same(tmp_path, content):
    slots = ProcessSlots(tmp_path, SESSION)
    (tmp_path / "processes" / ("11" * 16)).write_bytes(content)
    assert [one.slot for one in slots.dead()] == [b"\x11" * 16]
    assert "is gone" in str(slots.dead()[0])
    slots.release()


def test_what_is_no_slot_is_passed_over(tmp_path):
    slots = ProcessSlots(tmp_path, SESSION)
    for name in ("notes", "11" * 15, "22" * 16 + ".tmp"):
        (tmp_path / "processes" / name).write_bytes(b"x")
    assert slots.dead() == slots.others() == []
    slots.settle_older()
    assert [path.name for path in (tmp_path / "processes").iterdir()] == [slots.own.hex()]
    slots.release()


def test_two_that_look_at_once_do_not_take_each_other_for_the_owner(tmp_path, other):
    slots = ProcessSlots(tmp_path, SESSION)
    gone = ProcessSlots(tmp_path, SESSION)
    gone.release()
    other.begin(
        "for _ in range(2000): assert not slots.alive(bytes.fromhex(gone))", gone=gone.own.hex()
    )
    for _ in range(2000):
        assert not slots.alive(gone.own)
    other.answer()
    slots.release()


def test_a_slot_is_never_seen_unlocked_while_its_process_lives(tmp_path, other):
    slots = ProcessSlots(tmp_path, SESSION)
    other.begin("kept = [ProcessSlots(Path(path), bytes(16)) for _ in range(300)]")
    while len(slots.others()) < 301:
        assert slots.dead() == []
    other.answer()
    slots.release()


def test_a_fork_does_not_keep_the_parents_slot_alive(tmp_path, other):
    slots = ProcessSlots(tmp_path, SESSION)
    with Fork(Fork.wait):
        assert other.value("slots.alive(bytes.fromhex(mine))", mine=slots.own.hex())
        slots.release()
        assert not other.value("slots.alive(bytes.fromhex(mine))")


def test_a_child_is_another_process(tmp_path):
    slots = ProcessSlots(tmp_path, SESSION)

    def look():
        own = ProcessSlots(tmp_path, SESSION)
        return own.alive(slots.own), slots.alive(slots.own), own.alive(own.own)

    # The parent's own object is none of the child's.
    assert in_child(look) == (True, False, True)
    assert len(slots.dead()) == 1
    slots.release()
