"""Newest records that had been synced, and are gone after an unclean stop: somebody is told."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED, call
from harness.fork import die, dies_in_child
from stores import QUIET

import eoslog
from eoslog.bindings.control_state import control_state, synced_before
from eoslog.fs.identity_files import id_bytes, read_partition_metadata
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.store.store import engine_of, parts_of

pytestmark = pytest.mark.crash

SYNCED, UNSYNCED = 40, 5
_FRONT = struct.Struct(">qi")  # Base offset, and the length behind these two.
# In the control page.
_RECOVERY_POINT_AT = 88
_KEPT_AT = 3584 + 16


def killed(path: Path, tmp_path: Path, *, again: bool = False) -> None:
    """Make a store whose only process is killed: most of its records were synced by then."""

    def work() -> None:
        store = eoslog.open(path, create=not again, config=QUIET)
        if again:
            store.delete_topic("t")
        store.create_topic("t", config={"segment.bytes": 4096})
        with store.producer() as producer:
            for number in range(SYNCED if not again else 1):
                producer.append("t", 0, [b"%04d" % number + b"x" * 300])
            producer.flush()
            for number in range(UNSYNCED):
                producer.append("t", 0, [b"%04d" % number + b"y" * 300])
            die()

    assert dies_in_child(work)


def killed_reading(path: Path, tmp_path: Path) -> None:
    """A process that only reads finds all of them, and is killed."""

    def work() -> None:
        store = eoslog.open(path, config=QUIET)
        assert store.partition("t", 0).log_end_offset >= SYNCED
        die()

    assert dies_in_child(work)


def killed_opening(path: Path, tmp_path: Path) -> None:
    """A process that is killed in its recovery: its page counts for nothing."""

    def work() -> None:
        store = eoslog.open(path, config=QUIET)
        PartitionProducers.restore = lambda *_: die()  # type: ignore[method-assign, assignment]
        store.partition("t", 0)

    assert dies_in_child(work)


# What becomes of the store after the records were synced: openers that are killed too.
LIVES = {
    "one": (),
    "a reader": (killed_reading,),
    "two readers": (killed_reading, killed_reading),
    "an opener": (killed_opening,),
    "openers and a reader": (killed_opening, killed_opening, killed_reading, killed_opening),
}


@pytest.fixture(params=LIVES.values(), ids=LIVES.keys())
def path(tmp_path, request):
    killed(tmp_path / "store", tmp_path)
    for life in request.param:
        life(tmp_path / "store", tmp_path)
    return tmp_path / "store"


def segments(path: Path) -> list[Path]:
    return sorted((path / "t-0").glob("*.log"))


def delete_newest(path: Path) -> None:
    segments(path)[-1].unlink()


def empty_newest(path: Path) -> None:
    os.truncate(segments(path)[-1], 0)


def cut_between_batches(path: Path) -> None:
    """Of the newest segment with more than one that were synced, the first stays."""
    newest = next(
        one
        for one in reversed(segments(path))
        if int(one.name[:20]) < SYNCED - 1 and len(positions(one)) > 1
    )
    for later in segments(path)[segments(path).index(newest) + 1 :]:
        later.unlink()
    os.truncate(newest, positions(newest)[1])


def positions(log: Path) -> list[int]:
    """Where its batches begin; zeros stand behind the last."""
    data, found, position = log.read_bytes(), [], 0
    while position + _FRONT.size <= len(data):
        _, length = _FRONT.unpack_from(data, position)
        if length == 0:
            break
        found.append(position)
        position += _FRONT.size + length
    return found


def empty_all(path: Path) -> None:
    for one in segments(path)[1:]:
        one.unlink()
    os.truncate(segments(path)[0], 0)


LOSSES = [delete_newest, empty_newest, cut_between_batches, empty_all]


def lose_below(path: Path, lose) -> None:
    """As often as it takes to lose what was synced too."""
    while lose in (delete_newest, empty_newest) and int(segments(path)[-1].name[:20]) >= SYNCED:
        segments(path)[-1].unlink()
    lose(path)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("lose", LOSSES)
def test_the_first_opening_says_it(path, caplog, lose):
    lose_below(path, lose)
    answer = call("verify", "--repair", "--dry-run", "--store", path)
    assert answer.status == FAILED
    assert f"all below offset {SYNCED} had been synced" in answer.stdout
    answer = call("verify", "--repair", "--store", path)
    assert answer.status == FAILED
    assert "refused" in answer.stdout
    with eoslog.open(path, config=QUIET) as store:
        end = store.partition("t", 0).log_end_offset
        assert end < SYNCED
        (problem,) = store.verify()
        assert problem["path"] == str(path / "t-0")
        assert f"all below offset {SYNCED} had been synced" in str(problem["reason"])
        assert f"end at {end}" in str(problem["reason"])
    assert "had been synced" in caplog.text


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("lives", [(), (killed_reading,)])
def test_what_was_told_once_is_not_told_again(path, tmp_path, lives):
    """What is appended behind the loss counts anew."""
    lose_below(path, empty_all)
    with eoslog.open(path, config=QUIET) as store:
        assert store.verify()
    for life in lives:
        with pytest.raises(AssertionError):
            life(path, tmp_path)
    assert call("verify", "--store", path).status == DONE


def test_a_bit_of_what_was_synced_is_not_cut_away(path):
    while int(segments(path)[-1].name[:20]) >= SYNCED:
        segments(path)[-1].unlink()
    newest = segments(path)[-1]
    data = bytearray(newest.read_bytes())
    last = data.index(b"%04d" % (SYNCED - 1) + b"x" * 300)
    behind = [one for one in positions(newest) if one > last]
    del data[behind[0] if behind else len(data) :]  # It was never synced, and may be lost.
    data[last + 10] ^= 1
    newest.write_bytes(data)
    answer = call("verify", "--repair", "--store", path)
    assert answer.status == FAILED
    assert f"the log went up to offset {SYNCED}" in answer.stdout
    assert newest.read_bytes() == bytes(data)


def test_records_that_were_never_synced_may_go(path, caplog):
    newest = segments(path)[-1]
    assert positions(newest), "the last records are there"
    os.truncate(newest, positions(newest)[-1])
    assert call("verify", "--repair", "--dry-run", "--store", path).status == DONE
    with eoslog.open(path, config=QUIET) as store:
        assert SYNCED <= store.partition("t", 0).log_end_offset < SYNCED + UNSYNCED
        assert store.verify() == []
    assert "had been synced" not in caplog.text


def test_nothing_is_gone(path):
    assert call("verify", "--repair", "--dry-run", "--store", path).status == DONE
    assert call("verify", "--store", path).status == DONE


def test_the_page_of_a_topic_that_is_no_more(path, tmp_path):
    """A power cut may give it back, beside the log of a new topic of the name."""
    page = path / "state" / "control" / "t-0"
    old = page.read_bytes()
    old_id = id_bytes(read_partition_metadata(path / "t-0"))
    assert synced_before(str(page), old_id, 0) == SYNCED
    killed(path, tmp_path, again=True)
    new_id = id_bytes(read_partition_metadata(path / "t-0"))
    assert synced_before(str(page), new_id, 0) == 1
    assert synced_before(str(page), old_id, 0) == 0
    page.write_bytes(old)
    assert synced_before(str(page), old_id, 0) == SYNCED
    assert synced_before(str(page), old_id, 1) == 0
    assert call("verify", "--repair", "--dry-run", "--store", path).status == DONE
    with eoslog.open(path, config=QUIET) as store:
        assert store.verify() == []


def test_a_page_that_is_damaged(path):
    page = path / "state" / "control" / "t-0"
    data = bytearray(page.read_bytes())
    data[_RECOVERY_POINT_AT + 3] ^= 1
    data[_KEPT_AT + 3] ^= 1
    page.write_bytes(data)
    assert control_state(str(page)).recovery_point > 1 << 20
    assert call("verify", "--repair", "--dry-run", "--store", path).status == DONE
    assert call("verify", "--store", path).status == DONE


@pytest.mark.parametrize("clean", [True, False])
def test_a_loss_that_the_checkpoint_knows_is_told_as_long_as_its_finder_lives(tmp_path, clean):
    """Also when that has written a checkpoint of its own."""
    path = tmp_path / "store"

    def work() -> None:
        store = eoslog.open(path, create=True, config=QUIET)
        store.create_topic("t", config={"segment.bytes": 4096})
        with store.producer() as producer:
            for number in range(SYNCED):
                producer.append("t", 0, [b"%04d" % number + b"x" * 300])
        store.flush()
        parts_of(store).checkpointer.write_checkpoints()
        if clean:
            store.close()
        die()

    assert dies_in_child(work)
    segments(path)[-1].unlink()
    with eoslog.open(path, config=QUIET) as store:
        assert store.partition("t", 0).log_end_offset < SYNCED
        for _ in range(2):
            reasons = [str(one["reason"]) for one in store.verify()]
            assert any(f"below offset {SYNCED} had been synced" in one for one in reasons)
            engine_of(store).partition("t", 0).append_columns([b"v"])
            store.flush()
            parts_of(store).checkpointer.write_checkpoints()
    assert call("verify", "--store", path).status == DONE


def test_what_is_appended_after_a_loss_is_verified_by_the_next_recovery(tmp_path):
    """Though a checkpoint once named a higher recovery point: it is lowered before the append."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True, config=QUIET) as store:
        store.create_topic("t", config={"segment.bytes": 4096})
        engine_of(store).partition("t", 0).append_columns(
            [b"%04d" % n + b"x" * 300 for n in range(SYNCED)]
        )
    segments(path)[-1].unlink()

    def append() -> None:
        partition = engine_of(eoslog.open(path, config=QUIET)).partition("t", 0)
        assert partition.log_end_offset < SYNCED
        while partition.log_end_offset < SYNCED + 1:
            partition.append_columns([b"new" + b"y" * 600])
        die()

    assert dies_in_child(append)
    # A power cut: a page of what was never synced is lost, and so is what the control page knew.
    newest = next(one for one in segments(path) if b"new" in one.read_bytes())
    data = bytearray(newest.read_bytes())
    torn = data.index(b"new") + 100
    data[torn : torn + 300] = bytes(300)
    newest.write_bytes(data)
    (path / "state" / "control" / "t-0").unlink()
    with eoslog.open(path, config=QUIET) as store:
        partition = engine_of(store).partition("t", 0)
        assert partition.cut_bytes
        partition.append_columns([b"later"])
        records, _ = partition.fetch_records(partition.active_base_offset, 1000, 1 << 20)
        assert [one.value[:5] for one in records] == [b"later"]
        assert partition.verify() == []
