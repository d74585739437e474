"""Newest records that had been synced, and are gone after an unclean stop: somebody is told."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED, call
from kills import die, in_child

import eoslog
from eoslog.bindings.control_state import control_state

pytestmark = pytest.mark.crash

QUIET = {"eoslog.checkpoint.interval.ms": 3_600_000, "log.initial.task.delay.ms": 3_600_000}
SYNCED, UNSYNCED = 40, 5
_FRONT = struct.Struct(">qi")  # Base offset, and the length behind these two.
_RECOVERY_POINT_AT = 88  # In the control page.


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

    in_child(work, tmp_path)


@pytest.fixture
def path(tmp_path):
    killed(tmp_path / "store", tmp_path)
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
    killed(path, tmp_path, again=True)
    assert control_state(str(page)).recovery_point == 1
    page.write_bytes(old)
    assert control_state(str(page)).recovery_point == SYNCED
    assert call("verify", "--repair", "--dry-run", "--store", path).status == DONE
    with eoslog.open(path, config=QUIET) as store:
        assert store.verify() == []


def test_a_page_that_is_damaged(path):
    page = path / "state" / "control" / "t-0"
    data = bytearray(page.read_bytes())
    data[_RECOVERY_POINT_AT + 3] ^= 1
    page.write_bytes(data)
    assert control_state(str(page)).recovery_point > 1 << 20
    assert call("verify", "--repair", "--dry-run", "--store", path).status == DONE
    assert call("verify", "--store", path).status == DONE
