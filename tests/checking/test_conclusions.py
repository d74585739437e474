"""What is concluded from what, by hand: small histories, and the one thing that matters in each."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from eoslog.checking import Report, check


class Small:
    """A history that is written call by call; each call takes from `at` to `at + 1`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "h.jsonl"
        self.lines: list[dict[str, Any]] = []

    def do(self, at: int, client: str, kind: str, outcome: str = "ok", **fields: Any) -> None:
        times = {"begin_ns": at * 1_000_000, "end_ns": (at + 1) * 1_000_000}
        self.lines.append({"client": client, "kind": kind, "outcome": outcome, **times, **fields})

    def send(self, at: int, client: str, value: str, outcome: str = "ok", **fields: Any) -> None:
        where = {"topic": "t", "partition": 0} | fields
        self.do(at, client, "send", outcome, value=value, **where)

    def poll(self, at: int, client: str, *records: list[Any], **fields: Any) -> None:
        self.do(at, client, "poll", records={"t-0": list(records)}, **fields)

    def checked(self, **options: Any) -> Report:
        self.path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return check([self.path], **{"visible_within_s": 0, **options})

    def found(self, **options: Any) -> dict[str, int]:
        return {one.kind: one.count for one in self.checked(**options).found if one.count}


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


# Two tries of one record.


def test_a_second_try_after_an_aborted_one_is_no_duplicate(small: Small) -> None:
    small.send(0, "a", "v", transaction="1", offset=0)
    small.do(2, "a", "abort", transaction="1")
    small.send(4, "a", "v", transaction="2")
    small.do(6, "a", "commit", transaction="2")
    small.poll(8, "b", [0, "v"], [2, "v"], isolation="read_uncommitted")
    small.poll(8, "c", [2, "v"])
    assert small.found() == {}
    small.poll(9, "d", [0, "v"], [2, "v"])
    assert small.found() == {"aborted read": 1, "duplicate": 1}


def test_a_second_try_of_an_unknown_one_may_be_there_once(small: Small) -> None:
    small.send(0, "a", "v", "unknown")
    small.send(4, "a2", "v")
    small.poll(8, "b", [0, "v"])
    assert small.found() == {}
    small.poll(10, "b", [1, "v"])
    assert small.found() == {"duplicate": 1}


def test_which_try_a_reader_of_all_data_has_is_not_known(small: Small) -> None:
    small.send(0, "a", "v", transaction="1")
    small.do(2, "a", "abort", transaction="1")
    small.send(4, "a", "v")
    small.poll(8, "b", [0, "v"], [2, "v"], isolation="read_uncommitted")
    assert small.found() == {}


def test_a_plain_record_is_twice_for_a_reader_of_all_data_too(small: Small) -> None:
    small.send(4, "a", "v")
    small.poll(8, "b", [0, "v"], [1, "v"], isolation="read_uncommitted")
    assert small.found() == {"duplicate": 1}


def test_a_repeated_send_may_be_answered_with_what_the_first_wrote(small: Small) -> None:
    small.send(0, "a", "x", "unknown")
    small.send(2, "a", "y", offset=1)
    small.send(4, "a", "x", offset=0)
    assert small.found() == {}
    small.lines[0] |= {"outcome": "ok", "offset": 0}
    assert small.found() == {}
    # No try of it is from before.
    small.lines[0] = small.lines[0] | {"outcome": "fail"}
    del small.lines[0]["offset"]
    assert small.found() == {"non-monotonic send": 1}


def test_what_was_sent_between_two_tries_is_behind_the_first(small: Small) -> None:
    small.send(0, "a", "x", "unknown")
    small.send(2, "a", "y")
    small.send(4, "a", "x", offset=0)
    assert small.found() == {}, "there is room for y behind x"
    small.send(6, "a", "z", offset=1)
    assert small.found() == {}
    small.send(3, "b", "x", "unknown")
    del small.lines[0]
    assert small.found() == {}
    del small.lines[-1]
    assert small.found() == {"lost write": 1}


def test_an_end_between_two_tries_may_be_behind_the_record(small: Small) -> None:
    small.send(0, "a", "x", "unknown")
    small.do(2, "w", "ends", offsets={"t-0": 1}, isolation="read_uncommitted")
    small.send(4, "a", "x")
    small.do(6, "w", "ends", offsets={"t-0": 1}, isolation="read_uncommitted")
    assert small.found() == {}
    small.lines[0]["outcome"] = "fail"
    assert small.found() == {"lost write": 1}


def test_a_zombie_that_is_told_of_what_it_wrote_before_writes_nothing(small: Small) -> None:
    small.do(0, "old", "init", transactional_id="i")
    small.send(2, "old", "x", "unknown", transactional_id="i")
    small.do(4, "new", "init", transactional_id="i")
    small.send(6, "old", "x", offset=0, transactional_id="i")
    assert small.found() == {}
    small.lines[1]["outcome"] = "fail"
    assert small.found() == {"zombie write": 1}


# Where an unanswered record must be.


def test_a_lost_record_is_between_its_clients_others(small: Small) -> None:
    for at, value in enumerate("abc"):
        small.send(2 * at, "a", value)
    small.poll(10, "r", [0, "a"], [1, "c"])
    assert small.found() == {"lost write": 1}


def test_a_record_for_which_there_is_no_room_is_lost(small: Small) -> None:
    """Nobody read anything: the partition has the same end before and after."""
    small.do(0, "w", "ends", offsets={"t-0": 3})
    small.send(2, "a", "x")
    small.do(4, "w", "ends", offsets={"t-0": 4}, isolation="read_uncommitted")
    assert small.found() == {}
    small.lines[-1]["offsets"] = {"t-0": 3}
    assert small.found() == {"lost write": 1}


def test_a_record_behind_the_last_that_was_read_is_not_lost(small: Small) -> None:
    small.send(0, "a", "x")
    small.send(2, "a", "y")
    small.poll(10, "r", [0, "x"], next={"t-0": 2})
    assert small.found() == {}
    small.do(12, "w", "ends", offsets={"t-0": 2}, isolation="read_committed")
    assert small.found() == {}, "an end without open transactions says nothing of them"
    small.do(14, "w", "ends", offsets={"t-0": 2}, isolation="read_uncommitted")
    assert small.found() == {"lost write": 1}


def test_a_lost_record_of_an_unknown_partition(small: Small) -> None:
    small.send(4, "a", "x", partition=None)
    small.do(8, "w", "ends", offsets={"t-0": 1, "t-1": 1}, isolation="read_uncommitted")
    small.do(10, "r", "seek", positions={"t-0": 0, "t-1": 0})
    small.do(12, "r", "poll", records={"t-0": [[0, "other"]]})
    assert small.found() == {}, "the other partition was not read"
    small.do(14, "r", "poll", records={"t-1": [[0, "another"]]})
    assert small.found() == {"lost write": 1}


def test_a_reader_that_seeks_passes_nothing(small: Small) -> None:
    for offset, value in enumerate("abc"):
        small.send(offset, "w", value, offset=offset)
    small.poll(10, "q", [0, "a"], [1, "b"], [2, "c"])
    small.poll(10, "r", [0, "a"])
    small.do(12, "r", "seek", positions={"t-0": None})
    small.poll(14, "r", [2, "c"])
    assert small.found() == {}
    del small.lines[-2]
    assert small.found() == {"poll skip": 1}


def test_a_poll_that_failed_leaves_the_consumer_anywhere(small: Small) -> None:
    for offset, value in enumerate("abc"):
        small.send(offset, "w", value, offset=offset)
    small.poll(10, "q", [0, "a"], [1, "b"], [2, "c"])
    small.poll(10, "r", [0, "a"])
    small.do(12, "r", "poll", "unknown")
    small.poll(14, "r", [2, "c"])
    assert small.found() == {}


def test_only_readers_of_committed_data_miss_what_others_have(small: Small) -> None:
    small.send(0, "a", "x", transaction="1", offset=0)
    small.do(2, "a", "commit", transaction="1")
    small.poll(4, "q", [0, "x"], isolation="read_uncommitted")
    assert small.found() == {}
    small.do(6, "r", "seek", positions={"t-0": 0})
    small.poll(8, "r", next={"t-0": 2})
    assert small.found() == {"lost write": 1}


# Ends that go back.


def end(small: Small, at: int, offset: int, level: str = "read_uncommitted", by: str = "w") -> None:
    small.do(at, by, "ends", offsets={"t-0": offset}, isolation=level)


def test_an_end_does_not_go_back(small: Small) -> None:
    end(small, 0, 5)
    end(small, 2, 5)
    assert small.found() == {}
    end(small, 4, 3)
    end(small, 6, 2)
    report = small.checked()
    assert report.count("lost write") == 1, "one per partition"
    (anomaly,) = report.anomalies
    assert anomaly.what == "t-0 ended at offset 3, and had ended at 5 before"
    assert [one.line for one in anomaly.operations] == [1, 3]


def test_ends_that_were_asked_for_at_once_have_no_order(small: Small) -> None:
    end(small, 0, 5, by="v")
    end(small, 1, 3)
    assert small.found() == {}
    small.lines[1]["begin_ns"] += 1
    small.lines[1]["end_ns"] += 1
    assert small.found() == {"lost write": 1}
    assert small.found(clock_error_ms=1) == {}
    small.lines[0]["client"] = "w"
    assert small.found(clock_error_ms=1) == {"lost write": 1}, "one client has one clock"


def test_the_end_of_committed_data_is_before_that_of_all(small: Small) -> None:
    end(small, 0, 5)
    end(small, 2, 3, "read_committed")
    small.send(4, "a", "x", offset=5)
    small.poll(6, "r", [5, "x"], isolation="read_uncommitted")
    end(small, 8, 3, "read_committed")
    assert small.found() == {}, "an open transaction may begin at 3"
    end(small, 10, 2, "read_committed")
    assert small.found() == {"lost write": 1}
    small.lines[-1]["isolation"] = "read_uncommitted"
    assert small.found() == {"lost write": 1}


def test_what_was_read_is_in_front_of_the_end(small: Small) -> None:
    small.poll(0, "r", [5, "x"])
    end(small, 2, 6)
    end(small, 2, 6, "read_committed")
    assert small.found() == {}
    for level in ("read_committed", "read_uncommitted"):
        end(small, 4, 5, level)
        report = small.checked()
        assert report.count("lost write") == 1
        assert "had been read up to 6" in report.anomalies[0].what or "had ended at 6" in (
            report.anomalies[0].what
        )
        small.lines.pop()
    del small.lines[1:]
    end(small, 0, 5)
    assert small.found() == {}, "they were at once"
    end(small, 4, 5)
    assert small.found() == {"lost write": 1}


def test_where_a_reader_only_stands_nothing_is_shown(small: Small) -> None:
    small.do(0, "r", "seek", positions={"t-0": 9})
    small.poll(2, "r", next={"t-0": 9})
    end(small, 4, 5)
    assert small.found() == {}
    small.poll(6, "r", next={"t-0": 10})
    end(small, 8, 9)
    assert small.found() == {"lost write": 1}


def test_what_was_acknowledged_is_in_front_of_the_end(small: Small) -> None:
    small.send(0, "a", "x", offset=5)
    end(small, 1, 5)
    end(small, 2, 3, "read_committed")
    end(small, 2, 6)
    assert small.found() == {}
    small.lines.pop()
    end(small, 2, 5)
    report = small.checked()
    assert report.count("lost write") == 1
    (anomaly,) = report.anomalies
    assert "'x' was acknowledged; t-0 ended before its offset, 5, afterwards" in anomaly.what
    assert [one.line for one in anomaly.operations] == [1, 4]
    small.poll(6, "r", [5, "x"])
    assert small.found() == {"lost write": 1}, "somebody has it, and the end was before it"


def test_a_transaction_is_in_front_of_the_end_once_it_is_committed(small: Small) -> None:
    small.send(0, "a", "x", offset=5, transaction="1")
    end(small, 2, 3)
    assert small.found() == {}, "a power cut takes it, and aborts it"
    small.do(4, "a", "commit", transaction="1")
    assert small.found() == {}
    end(small, 6, 3)
    assert small.found() == {"lost write": 1}
    small.send(1, "b", "y", offset=2, transaction="1")
    small.poll(9, "r", [2, "y"])
    assert small.found() == {"torn transaction": 1}


def test_a_record_that_is_lost_is_not_invisible_too(small: Small) -> None:
    waiting(small)
    assert small.found() == {"invisible record": 1}
    end(small, 50, 0)
    assert small.found() == {"lost write": 1}


def test_a_partition_has_room_for_all_that_was_acknowledged(small: Small) -> None:
    small.send(0, "a", "x")
    small.send(0, "b", "y")
    small.send(0, "c", "z", transaction="1")
    end(small, 4, 2)
    assert small.found() == {}, "nobody committed z"
    small.do(2, "c", "commit", transaction="1")
    assert small.found() == {"lost write": 1}
    small.lines[0]["value"] = "y"
    assert small.found() == {}, "two tries of one record"
    small.lines[0] |= {"value": "x", "partition": None}
    assert small.found() == {}
    small.lines[0] |= {"partition": 0, "end_ns": 4_000_000}
    assert small.found() == {}, "it was not yet done"
    small.lines[0]["end_ns"] = 1_000_000
    small.lines[3]["isolation"] = "read_committed"
    assert small.found() == {}, "an open transaction may be in front of all"


# Transactions of unknown outcome.


def test_an_abort_decides_what_an_unknown_commit_did_not(small: Small) -> None:
    small.send(0, "a", "x", transaction="1", offset=0)
    small.send(1, "a", "y", transaction="1", offset=1)
    small.do(2, "a", "commit", "unknown", transaction="1")
    small.do(4, "a2", "abort", transaction="1")
    small.poll(6, "r", [0, "x"], next={"t-0": 3})
    assert small.found() == {"aborted read": 1}


def test_an_unknown_commit_is_decided_by_what_is_seen(small: Small) -> None:
    small.send(0, "a", "x", transaction="1", offset=0)
    small.send(2, "a", "y", transaction="1", offset=1)
    small.do(4, "a", "commit", "unknown", transaction="1")
    small.do(6, "r", "seek", positions={"t-0": 0})
    small.poll(8, "r", next={"t-0": 3})
    assert small.found() == {}, "it was aborted, then"
    small.lines[-1]["records"] = {"t-0": [[0, "x"]]}
    assert small.found() == {"torn transaction": 1}
    small.lines[-1]["records"] = {"t-0": [[0, "x"], [1, "y"]]}
    assert small.found() == {}


def test_a_commit_that_failed_may_be_tried_again(small: Small) -> None:
    small.send(0, "a", "x", transaction="1", offset=0)
    small.do(2, "a", "commit", "fail", transaction="1")
    small.poll(4, "r", [0, "x"])
    assert small.found() == {"aborted read": 1}
    small.lines.pop()
    small.do(4, "a", "commit", "unknown", transaction="1")
    small.poll(6, "r", [0, "x"])
    assert small.found() == {}


def test_a_groups_offset_shows_a_commit(small: Small) -> None:
    """The group went where only this transaction leads; its record is not there."""
    small.do(0, "c", "committed", group="g", offsets={"in-0": None})
    small.send(2, "a", "x", transaction="1", offset=0)
    small.do(4, "a", "offsets", group="g", offsets={"in-0": 5}, transaction="1")
    small.do(6, "a", "commit", "unknown", transaction="1")
    small.do(8, "r", "seek", positions={"t-0": 0})
    small.poll(10, "r", next={"t-0": 2})
    assert small.found() == {}
    small.do(12, "c", "committed", group="g", offsets={"in-0": 5})
    assert small.found() == {"offset-output divergence": 1}
    # If the group may have stood there before, the offset shows nothing.
    del small.lines[0]
    assert small.found() == {}


def test_an_offset_that_another_wrote_too_shows_nothing(small: Small) -> None:
    small.do(0, "c", "committed", group="g", offsets={"in-0": None})
    small.send(2, "a", "x", transaction="1", offset=0)
    small.do(4, "a", "offsets", group="g", offsets={"in-0": 5}, transaction="1")
    small.do(6, "a", "commit", "unknown", transaction="1")
    small.do(7, "b", "offsets", group="g", offsets={"in-0": 5}, transaction="2")
    small.do(8, "b", "commit", transaction="2")
    small.do(10, "r", "seek", positions={"t-0": 0})
    small.poll(11, "r", next={"t-0": 2})
    small.do(12, "c", "committed", group="g", offsets={"in-0": 5})
    assert small.found() == {}


def test_an_offset_before_its_commit(small: Small) -> None:
    small.do(0, "a", "offsets", group="g", offsets={"in-0": 5}, transaction="1")
    small.do(2, "c", "committed", group="g", offsets={"in-0": 5})
    small.do(4, "a", "commit", transaction="1")
    assert small.found() == {"offset-output divergence": 1}
    small.lines[1]["end_ns"] = small.lines[2]["begin_ns"]
    assert small.found() == {}


def moved(small: Small, at: int, offset: int, outcome: str = "ok", **fields: Any) -> None:
    client = fields.get("transaction", "w")
    fields = {"group": "g", "offsets": {"in-0": offset}, **fields}
    small.do(at, client, "offsets", outcome, **fields)


def stands(small: Small, at: int, offset: int | None) -> None:
    small.do(at, "c", "committed", group="g", offsets={"in-0": offset})


def test_an_offset_that_was_refused_overwrites_nothing(small: Small) -> None:
    moved(small, 0, 8)
    moved(small, 2, 30, "fail")
    stands(small, 4, 8)
    assert small.found() == {}
    stands(small, 6, 30)
    assert small.found() == {"offset-output divergence": 1}


@pytest.mark.parametrize("plain", [True, False])
def test_the_offset_that_was_written_later_holds(plain: bool, small: Small) -> None:
    """Whoever commits first."""
    moved(small, 0, 26, transaction="1")
    moved(small, 2, 8, **({} if plain else {"transaction": "2"}))
    for at, name in ((4, "2"), (6, "1")):
        small.do(at, name, "commit", transaction=name)
    stands(small, 8, 8)
    assert small.found() == {}
    small.lines[-1]["offsets"]["in-0"] = 26
    assert small.found() == {"offset-output divergence": 1}
    # Written at once, either may be the later one.
    small.lines[0]["end_ns"] = small.lines[1]["begin_ns"]
    assert small.found() == {}
    small.lines[-1]["offsets"]["in-0"] = 8
    assert small.found() == {}


def test_a_later_offset_holds_from_its_commit_on(small: Small) -> None:
    moved(small, 0, 5)
    moved(small, 2, 7, transaction="1")
    stands(small, 4, 5)
    small.do(6, "1", "commit", transaction="1")
    assert small.found() == {}
    stands(small, 8, 5)
    assert small.found() == {"offset-output divergence": 1}
    small.lines[-1]["begin_ns"] = small.lines[-2]["end_ns"]
    assert small.found() == {}


def test_the_last_of_a_transactions_offsets_holds(small: Small) -> None:
    moved(small, 0, 7, transaction="1")
    moved(small, 2, 5, transaction="1")
    small.do(4, "1", "commit", transaction="1")
    stands(small, 6, 5)
    assert small.found() == {}
    small.lines[-1]["offsets"]["in-0"] = 7
    assert small.found() == {"offset-output divergence": 1}
    small.lines[1]["outcome"] = "unknown"
    assert small.found() == {}


def test_an_offset_that_comes_again_later_was_overwritten_before(small: Small) -> None:
    moved(small, 0, 5)
    moved(small, 2, 7)
    stands(small, 4, 5)
    moved(small, 6, 5)
    assert small.found() == {"offset-output divergence": 1}
    small.lines[2]["end_ns"] = small.lines[3]["begin_ns"]
    assert small.found() == {}


def test_where_a_group_stood_at_first_nobody_wrote(small: Small) -> None:
    """Its offset is from before the history, and is committed once more."""
    stands(small, 2, 5)
    moved(small, 4, 5)
    assert small.found() == {}
    small.lines[-1]["outcome"] = "fail"
    assert small.found() == {}
    stands(small, 0, 3)
    assert small.found() == {"offset-output divergence": 1}
    small.lines[1]["outcome"] = "ok"
    assert small.found() == {"offset-output divergence": 1}
    small.lines[-1]["offsets"]["in-0"] = None
    assert small.found() == {"offset-output divergence": 1}
    small.lines[-1]["offsets"]["in-0"] = 5
    assert small.found() == {}


def test_where_a_group_stood_at_first_shows_no_commit(small: Small) -> None:
    """It stood there before anything that the history knows, and no more afterwards."""
    stands(small, 0, 5)
    stands(small, 2, 3)
    small.send(4, "a", "x", transaction="1", offset=0)
    small.do(6, "a", "offsets", group="g", offsets={"in-0": 5}, transaction="1")
    small.do(8, "a", "commit", "unknown", transaction="1")
    small.do(10, "r", "seek", positions={"t-0": 0})
    small.poll(12, "r", next={"t-0": 2})
    # The first answer is of an offset that only the transaction writes.
    del small.lines[0]["offsets"]["in-0"]
    assert small.found() == {}
    stands(small, 14, 5)
    assert small.found() == {"offset-output divergence": 1}


def test_a_group_that_is_moved_by_hand_may_process_again(small: Small) -> None:
    for at, name in ((10, "1"), (20, "2")):
        small.do(at, f"c{name}", "poll", records={"in-0": [[0, "i"]]}, transaction=name)
        small.do(at + 2, "a", "offsets", group="g", offsets={"in-0": 1}, transaction=name)
        small.do(at + 4, "a", "commit", transaction=name)
    assert small.found() == {"offset-output divergence": 1}
    small.do(16, "h", "offsets", group="g", offsets={"in-0": 0})
    assert small.found() == {}


def taken(small: Small, at: int, name: str, *offsets: int, end: str = "commit") -> None:
    """A transaction of the group, made from these records; their values are letters."""
    records = {"t-0": [[offset, "abcdefgh"[offset]] for offset in offsets]}
    after = offsets[-1] + 1
    small.do(at, "c", "poll", records=records, next={"t-0": after}, transaction=name)
    small.do(at + 2, "p", "offsets", group="g", offsets={"t-0": after}, transaction=name)
    small.do(at + 4, "p", end, transaction=name)


def letters(small: Small, count: int = 8) -> None:
    small.do(0, "s", "send", topic="t", partition=0, values=list("abcdefgh")[:count], offset=0)


def test_an_input_that_nobody_polled_is_left_out(small: Small) -> None:
    letters(small)
    taken(small, 10, "1", 1, 2)
    taken(small, 20, "2", 3, 4)
    small.lines[-2]["offsets"]["t-0"] = 8
    assert small.found() == {"offset-output divergence": 3}, "not a, which is in front of all"
    taken(small, 30, "3", 5, 6, 7)
    assert small.found() == {}


@pytest.mark.parametrize("position", [5, None])
def test_what_a_consumer_was_moved_over_is_not_left_out(position: int | None, small: Small) -> None:
    """By a seek, a reset to the latest records, or by retention."""
    letters(small)
    taken(small, 10, "1", 1, 2)
    small.do(18, "c", "seek", positions={"t-0": position})
    taken(small, 20, "2", 5, 6)
    assert small.found() == {}
    # It came to where the group stood; what was in front of that is the group's matter.
    small.lines[2]["offsets"]["t-0"] = 5
    assert small.found() == {"offset-output divergence": 2}


def skipped(small: Small, *, position: int | None, to: int = 2, by: str = "c") -> None:
    """A consumer was given a, is moved, and its transaction writes an offset; nothing is polled."""
    letters(small)
    small.poll(10, "c", [0, "a"], next={"t-0": 1}, transaction="1")
    small.do(12, by, "seek", positions={"t-0": position})
    small.do(14, "p", "offsets", group="g", offsets={"t-0": to}, transaction="1")
    small.do(16, "p", "commit", transaction="1")
    small.poll(30, "r", *([offset, letter] for offset, letter in enumerate("abcdefgh")))


def left_out(small: Small, **options: Any) -> int:
    return small.checked(**options).count("offset-output divergence")


@pytest.mark.parametrize("position", [2, None])
def test_a_sought_offset_may_be_written_before_a_poll(position: int | None, small: Small) -> None:
    """Whoever skips a record that cannot be processed does so."""
    skipped(small, position=position)
    assert small.found() == {}
    small.poll(18, "c", next={"t-0": 2})
    assert small.found() == {}
    del small.lines[2]
    assert left_out(small) == 1


def test_a_reset_with_nothing_behind_it_yet_is_a_move(small: Small) -> None:
    skipped(small, position=None, to=5)
    small.poll(13, "c", next={"t-0": 5}, transaction="1")
    assert small.found() == {}


def test_a_seek_over_others_excuses_nothing_that_polls_went_over(small: Small) -> None:
    skipped(small, position=5, to=5)
    small.lines[1] |= {"records": {"t-0": [[0, "a"], [2, "c"]]}, "next": {"t-0": 3}}
    assert left_out(small) == 1, "b, and not d and e"


def test_what_is_behind_the_sought_place_is_left_out(small: Small) -> None:
    skipped(small, position=2, to=4)
    assert left_out(small) == 2, "c and d: it was not sought to 4"


def test_a_look_ahead_that_was_taken_back_excuses_nothing(small: Small) -> None:
    skipped(small, position=3, to=3)
    small.poll(12, "c", [3, "d"], next={"t-0": 4})
    small.do(13, "c", "seek", positions={"t-0": 1})
    small.poll(13, "c", [1, "b"], next={"t-0": 2})
    small.poll(13, "c", [2, "c"], next={"t-0": 3}, transaction="1")
    assert left_out(small) == 1, "b"


def test_a_seek_of_another_consumer_excuses_nothing(small: Small) -> None:
    skipped(small, position=2, by="other")
    assert left_out(small) == 1
    small.poll(5, "other", [0, "a"], next={"t-0": 1}, transaction="2")
    small.do(20, "q", "abort", transaction="2")
    assert left_out(small) == 1


def test_a_seek_in_another_partition_excuses_nothing(small: Small) -> None:
    skipped(small, position=2)
    small.lines[2]["positions"] = {"t-1": 2}
    assert left_out(small) == 1


def test_a_seek_that_was_taken_back_excuses_nothing(small: Small) -> None:
    skipped(small, position=5, to=5)
    small.do(13, "c", "seek", positions={"t-0": 1})
    small.poll(13, "c", [1, "b"], [2, "c"], [4, "e"], next={"t-0": 5}, transaction="1")
    assert left_out(small) == 1
    small.lines.pop()
    assert left_out(small) == 4


def test_a_seek_back_to_what_is_committed_excuses_nothing(small: Small) -> None:
    """More was polled than the transaction is made of."""
    letters(small)
    small.poll(10, "c", [0, "a"], [2, "c"], [3, "d"], next={"t-0": 4}, transaction="1")
    small.do(12, "c", "seek", positions={"t-0": 3})
    small.do(14, "p", "offsets", group="g", offsets={"t-0": 3}, transaction="1")
    small.do(16, "p", "commit", transaction="1")
    small.poll(30, "r", [1, "b"])
    assert left_out(small) == 1


def test_a_seek_after_the_commit_excuses_nothing(small: Small) -> None:
    skipped(small, position=2)
    small.lines[2] |= {"begin_ns": 18_000_000, "end_ns": 19_000_000}
    assert left_out(small) == 1
    assert small.found(clock_error_ms=3) == {}, "it may have been before the commit"


def test_a_group_that_begins_at_the_latest_records_again(small: Small) -> None:
    """Nothing was committed when its consumer was given the partition once more."""
    letters(small, 4)
    taken(small, 10, "1", 1, end="abort")
    taken(small, 20, "2", 2)
    assert small.found() == {"offset-output divergence": 1}
    small.do(18, "c", "seek", positions={"t-0": None})
    assert small.found() == {}
    small.lines.pop()
    taken(small, 16, "3", 1)
    small.lines[-3] |= {"begin_ns": 17_000_000, "end_ns": 17_500_000}
    small.do(16, "c", "seek", positions={"t-0": 1})
    assert small.found() == {}, "it went back"


def test_an_aborted_transaction_of_unknown_end_may_have_taken_its_inputs(small: Small) -> None:
    letters(small, 4)
    taken(small, 10, "1", 1, end="abort")
    small.lines[-1] |= {"kind": "commit", "outcome": "unknown"}
    taken(small, 20, "2", 2)
    assert small.found() == {}


def test_what_came_after_the_group_was_moved_is_not_left_out(small: Small) -> None:
    """Somebody moved it behind the end of the partition."""
    small.do(0, "s", "send", topic="t", partition=0, value="a", offset=0)
    taken(small, 10, "1", 0)
    small.lines[-2]["offsets"]["t-0"] = 4
    small.do(20, "s", "send", topic="t", partition=0, values=["b", "c"], offset=1)
    assert small.found() == {}
    small.lines[-1] |= {"begin_ns": 5_000_000, "end_ns": 6_000_000}
    assert small.found() == {"offset-output divergence": 2}


def test_the_offset_that_a_transaction_wrote_last_is_how_far_it_went(small: Small) -> None:
    letters(small)
    taken(small, 10, "1", 0, 1)
    small.lines[-2]["offsets"]["t-0"] = 6
    assert small.found() == {"offset-output divergence": 4}
    small.do(13, "p", "offsets", group="g", offsets={"t-0": 2}, transaction="1")
    assert small.found() == {}


def test_what_a_transaction_without_offsets_took_is_not_left_out(small: Small) -> None:
    letters(small)
    taken(small, 10, "1", 0, 1)
    taken(small, 20, "2", 2, 3)
    del small.lines[-2]
    taken(small, 30, "3", 4)
    assert small.found() == {}
    small.lines[-4]["kind"] = "abort"
    assert small.found() == {"offset-output divergence": 2}


# Times.


def test_clocks_that_differ_prove_less(small: Small) -> None:
    small.send(0, "a", "x", transaction="1")
    small.poll(2, "r", [0, "x"])
    small.do(5, "a", "commit", transaction="1")
    assert small.found() == {"precommitted read": 1}
    assert small.found(clock_error_ms=1.5) == {"precommitted read": 1}
    assert small.found(clock_error_ms=2) == {}
    small.lines[1]["client"] = "a"
    assert small.found(clock_error_ms=2) == {"precommitted read": 1}, "one client has one clock"


def test_a_zombie_is_late_by_more_than_the_clocks_differ(small: Small) -> None:
    for at, client in ((0, "old"), (2, "new")):
        small.do(at, client, "init", transactional_id="i")
    small.send(5, "old", "x", offset=0, transaction="1", transactional_id="i")
    assert small.found() == {"zombie write": 1}
    assert small.found(clock_error_ms=3) == {}
    small.lines[2]["begin_ns"] = small.lines[1]["end_ns"]
    assert small.found() == {}, "it may have been there first"


def test_a_client_counts_from_its_last_init_on(small: Small) -> None:
    for at, client in ((10, "old"), (12, "new"), (14, "old"), (18, "third")):
        small.do(at, client, "init", transactional_id="i")
    small.send(9, "old", "v", offset=0, transaction="0", transactional_id="i")
    small.send(16, "old", "w", offset=1, transaction="1", transactional_id="i")
    small.send(16, "never", "x", offset=2, transaction="2", transactional_id="i")
    assert small.found() == {}
    small.send(16, "new", "y", offset=3, transaction="3", transactional_id="i")
    assert small.found() == {"zombie write": 1}
    small.send(20, "old", "z", offset=4, transaction="4", transactional_id="i")
    assert small.found() == {"zombie write": 2}


def test_a_client_writes_under_what_its_last_init_says(small: Small) -> None:
    small.do(0, "p", "init", transactional_id="i")
    small.do(2, "q", "init", transactional_id="i")
    small.send(4, "p", "x", offset=0, transaction="1")
    small.do(6, "p", "commit", transaction="1")
    assert small.found() == {"zombie write": 2}
    for line in small.lines[2:]:
        line["transactional_id"] = "j"
    assert small.found() == {}, "they say otherwise"
    for line in small.lines[2:]:
        del line["transactional_id"]
    small.do(3, "p", "init", transactional_id="j")
    assert small.found() == {}
    small.lines[-1]["outcome"] = "fail"
    assert small.found() == {"zombie write": 2}
    small.lines[-1] |= {"outcome": "unknown", "transactional_id": "i"}
    assert small.found() == {}, "it may own the id again"


def test_an_epoch_is_that_of_the_clients_last_init(small: Small) -> None:
    small.do(0, "p", "init", producer_id=4, producer_epoch=7)
    small.do(2, "q", "init", producer_id=4, producer_epoch=8)
    small.send(4, "p", "x", offset=0)
    assert small.found() == {"zombie write": 1}
    small.lines[-1]["client"] = "q"
    assert small.found() == {}
    small.lines[-1] |= {"producer_id": 5, "producer_epoch": 0}
    assert small.found() == {}


def test_an_epoch_may_rise_with_each_transaction(small: Small) -> None:
    """As Kafka's do: who does not say it has that of the init, or a greater one."""
    small.do(0, "p", "init", transactional_id="i", producer_id=4, producer_epoch=0)
    small.send(2, "p", "x", offset=0, producer_id=4, producer_epoch=1)
    small.send(4, "p", "y", offset=1)
    assert small.found() == {}
    small.lines[-1] |= {"producer_id": 4, "producer_epoch": 0}
    assert small.found() == {"zombie write": 1}
    small.lines[-1]["producer_epoch"] = 2
    small.lines[0]["end_ns"] = 500_000
    small.do(1, "q", "init", transactional_id="i")
    small.lines[-1]["end_ns"] = 1_500_000
    assert small.found() == {"zombie write": 2}, "a greater epoch is still the init's id"


def test_many_lives_of_one_id_take_no_longer_each(small: Small) -> None:
    """As time grows with the square of their number, these take ten seconds and more."""
    count = 40_000
    of = {"transactional_id": "i"}
    for life in range(count):
        small.do(3 * life, f"life-{life}", "init", **of)
    for life in range(count):
        small.send(3 * count, f"life-{life}", f"v-{life}", offset=life, transaction="t", **of)
    begin_s = time.process_time()
    assert small.found() == {"zombie write": count - 1}
    assert time.process_time() - begin_s < 6


def test_an_older_epoch_is_late_by_more_than_the_clocks_differ(small: Small) -> None:
    small.do(2, "new", "init", producer_id=4, producer_epoch=8)
    of = {"producer_id": 4, "producer_epoch": 7}
    small.send(5, "old", "x", offset=0, **of)
    assert small.found() == {"zombie write": 1}
    assert small.found(clock_error_ms=2) == {}
    small.lines[1]["producer_epoch"] = 8
    assert small.found() == {}


def test_what_a_zombie_only_gathered_is_no_write(small: Small) -> None:
    for at, client in ((0, "old"), (2, "new")):
        small.do(at, client, "init", transactional_id="i")
    small.send(5, "old", "x", transaction="1", transactional_id="i")
    small.do(7, "old", "commit", "fail", transaction="1", transactional_id="i")
    assert small.found() == {}
    small.poll(9, "r", [0, "x"], isolation="read_uncommitted")
    assert small.found() == {"zombie write": 1}


# Waiting readers.


def waiting(small: Small) -> None:
    small.do(0, "r", "seek", positions={"t-0": 0})
    small.send(2, "a", "x", offset=0)
    small.do(10, "r", "poll", records={}, next={"t-0": 0})
    small.do(40, "r", "poll", records={}, next={"t-0": 0})


def test_a_record_may_take_a_while_to_be_seen(small: Small) -> None:
    waiting(small)
    assert small.found() == {"invisible record": 1}
    assert small.found(visible_within_s=0.031) == {"invisible record": 1}
    assert small.found(visible_within_s=0.032) == {}


def test_a_record_that_somebody_read_is_visible(small: Small) -> None:
    waiting(small)
    small.poll(50, "q", [0, "x"])
    assert small.found() == {}


def test_a_reader_of_all_data_waits_as_well(small: Small) -> None:
    waiting(small)
    for line in small.lines[2:]:
        line["isolation"] = "read_uncommitted"
    assert small.found() == {"invisible record": 1}
    small.send(1, "b", "before", offset=7, transaction="1")
    assert small.found() == {}, "others are held back"
    small.lines.pop()
    small.lines[1]["transaction"] = "1"
    small.do(4, "a", "commit", transaction="1")
    assert small.found() == {"invisible record": 1}
    small.poll(50, "q", [0, "x"], isolation="read_uncommitted")
    assert small.found() == {}, "another reader of all data has it"


@pytest.mark.parametrize(
    ("end", "held"),
    [
        (None, True),
        ({"kind": "commit", "outcome": "unknown"}, True),
        ({"kind": "abort", "outcome": "fail"}, True),
        ({"kind": "abort", "outcome": "ok"}, False),
        ({"kind": "init", "outcome": "ok"}, False),
    ],
)
def test_an_open_transaction_holds_back_what_is_behind_it(
    end: dict[str, Any] | None, held: bool, small: Small
) -> None:
    waiting(small)
    of = {"transaction": "1", "transactional_id": "i"}
    small.send(1, "b", "before", offset=7, **of)
    if end is not None:
        fields = {"transactional_id": "i"} if end["kind"] == "init" else of
        small.do(5, "b2", end["kind"], end["outcome"], **fields)
    assert small.found() == ({} if held else {"invisible record": 1})


def test_what_began_later_holds_nothing_back(small: Small) -> None:
    waiting(small)
    small.send(4, "b", "later", transaction="1")
    assert small.found() == {"invisible record": 1}


@pytest.mark.parametrize("extra", ["nothing", "empty poll", "other partition", "without next"])
def test_a_transaction_that_took_nothing_says_so(small: Small, extra: str) -> None:
    """Its poll names it, and says where the consumer stands: others are looked at all the same."""
    letters(small)
    small.do(9, "p", "send", topic="t", partition=1, value="z", offset=0)
    small.poll(10, "c", [0, "a"], next={"t-0": 1}, transaction="1")
    small.do(11, "p", "offsets", group="g", offsets={"t-0": 1}, transaction="1")
    small.do(12, "p", "abort", transaction="1")
    small.poll(13, "c", [1, "b"], next={"t-0": 2}, transaction="2")
    small.do(14, "p", "offsets", group="g", offsets={"t-0": 2}, transaction="2")
    small.do(15, "p", "commit", transaction="2")
    if extra == "empty poll":
        small.poll(16, "c", next={"t-0": 2}, transaction="3")
    elif extra == "other partition":
        small.poll(16, "c", next={"t-0": 2, "t-1": 1}, transaction="3")
        small.lines[-1]["records"] = {"t-1": [[0, "z"]]}
    elif extra == "without next":
        small.poll(16, "c", next={"t-1": 1}, transaction="3")
    if extra != "nothing":
        small.do(17, "p", "offsets", group="g", offsets={"t-0": 2}, transaction="3")
        small.do(18, "p", "commit", transaction="3")
    # Of a poll that does not say where the consumer stands nobody knows what it took.
    assert left_out(small) == (0 if extra == "without next" else 1)


def test_a_transaction_that_took_nothing_after_a_seek(small: Small) -> None:
    """What its consumer was moved over is not left out, though it polled nothing behind that."""
    skipped(small, position=4, to=4)
    assert small.found() == {}
    small.lines.pop(-2)
    small.poll(13, "c", next={"t-0": 4}, transaction="2")
    small.do(15, "p", "offsets", group="g", offsets={"t-0": 4}, transaction="2")
    small.do(17, "p", "commit", transaction="2")
    assert left_out(small) == 0


# A group that the log itself moved.


@pytest.mark.parametrize(("before", "after"), [(4, 7), (4, None), (None, 7), (7, 4)])
@pytest.mark.parametrize("tried", [None, "failed", "aborted"])
def test_a_group_that_is_where_nobody_brought_it_was_moved_by_the_log(
    small: Small, before: int | None, after: int | None, tried: str | None
) -> None:
    small.do(0, "r", "committed", group="g", offsets={"in-0": before})
    if tried == "failed":
        small.do(10, "c", "offsets", "fail", group="g", offsets={"in-0": 9})
    elif tried == "aborted":
        small.do(10, "c", "offsets", group="g", offsets={"in-0": 9}, transaction="1")
        small.do(20, "c", "abort", transaction="1")
    assert small.found() == {}
    small.do(30, "r", "committed", group="g", offsets={"in-0": after})
    (found,) = [one for one in small.checked().found if one.count]
    (anomaly,) = found.examples
    assert anomaly.kind == "offset-output divergence"
    assert "which no client wrote" in anomaly.what
    assert [one.line for one in anomaly.operations] == [1, len(small.lines)]


def test_a_group_may_have_been_brought_there_by_an_unknown_write(small: Small) -> None:
    small.do(0, "r", "committed", group="g", offsets={"in-0": 4})
    small.do(10, "c", "offsets", "unknown", group="g", offsets={"in-0": 7})
    small.do(30, "r", "committed", group="g", offsets={"in-0": 7})
    assert small.found() == {}


def test_two_questions_at_a_time_may_be_answered_in_any_order(small: Small) -> None:
    """Nobody knows which of them is where the group stood in the beginning."""
    small.do(0, "r", "committed", group="g", offsets={"in-0": 4})
    small.do(0, "q", "committed", group="g", offsets={"in-0": 7})
    assert small.found() == {}
