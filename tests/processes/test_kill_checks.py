"""The kill loop's checks notice what they are for: each kind of loss, repetition and mix-up."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from harness.crew import Said
from processes.kill_checks import Known
from processes.kill_programs import (
    COPIES,
    COPIES_GROUP,
    EVENTS,
    LANES,
    MEMBERS_GROUP,
    NUMBERS_GROUP,
    PARTITIONS,
    SHARES,
    copies_of,
    records_at,
)

LANE = "AaAa"
TRANSACTIONS = 6


def sound() -> tuple[list[Said], dict[str, Any]]:
    """A store with a transactional lane, a named one, and copies; what its writers said."""
    said: list[Said] = []
    events: list[list[list[Any]]] = [[] for _ in range(PARTITIONS)]

    def say(word: str, *rest: Any) -> None:
        said.append(Said(len(said), word, list(rest)))

    def write(partition: int, value: str) -> None:
        events[partition].append([len(events[partition]), value])

    for number in range(TRANSACTIONS):
        say("try", LANE, number, f"a{number}")
        for partition, ones in records_at(LANE, number).items():
            for one in ones:
                write(partition, f"{one}:a{number}:x")
        say("ack", LANE, number, f"a{number}")
    say("try", LANE, TRANSACTIONS, "aborted")
    say("abort", LANE, TRANSACTIONS, "aborted")
    for position in range(5):
        say("try", "named-0", position, "0")
        write(0, f"named-0:{position}:0:0:y")
        say("ack", "named-0", position, "0")
    made = [
        [copy.decode() for _, value in rows for copy in copies_of(value.encode())]
        for rows in events
    ]
    outputs = [list(map(list, enumerate(values))) for values in made]
    ends = {f"{EVENTS}-{number}": len(rows) for number, rows in enumerate(events)}
    say("watch", 0, 2)
    say("saw", len(events[0]), events[0][2:])
    found = {
        "committed": {EVENTS: events, COPIES: outputs, SHARES: copy.deepcopy(outputs)},
        "all": events,
        "offsets": {
            NUMBERS_GROUP: {f"{LANES}-0": TRANSACTIONS},
            COPIES_GROUP: ends,
            MEMBERS_GROUP: dict(ends),
        },
        "verify": [],
    }
    return said, copy.deepcopy(found)


def check(said: list[Said], found: dict[str, Any]) -> None:
    known = Known(transactional={LANE: 0})
    known.take(SimpleNamespace(name="writer"), "read_committed", said)  # type: ignore[arg-type]
    known.check(found)


def rows_of(found, topic=EVENTS):
    return found["committed"][topic][0]


def lose_the_last(found):
    rows_of(found).pop()


def lose_one(found):
    rows_of(found).pop(1)


def repeat_one(found):
    rows = rows_of(found)
    rows.append([rows[-1][0] + 1, rows[-1][1]])


def swap_two(found):
    rows = rows_of(found)
    rows[-1][1], rows[-2][1] = rows[-2][1], rows[-1][1]


def commit_the_aborted(found):
    for number, rows in enumerate(found["committed"][EVENTS]):
        for one in records_at(LANE, TRANSACTIONS).get(number, []):
            rows.append([1000 + len(rows), f"{one}:aborted:x"])
    found["offsets"][NUMBERS_GROUP][f"{LANES}-0"] += 1


def forget_an_offset(found):
    found["offsets"][NUMBERS_GROUP][f"{LANES}-0"] -= 1


def mix_two_attempts(found):
    rows = rows_of(found)
    rows[0][1] = rows[0][1].replace(":a", ":b")


def copy_twice(found):
    rows = rows_of(found, COPIES)
    rows.append([rows[-1][0] + 1, rows[-1][1]])


def lose_a_share(found):
    rows_of(found, SHARES).pop()


def move_a_groups_offset(found):
    found["offsets"][COPIES_GROUP][f"{EVENTS}-0"] -= 5


def move_what_a_reader_saw(found):
    for row in rows_of(found)[3:]:
        row[0] += 1


def damage_a_file(found):
    found["verify"].append({"path": "a.log"})


def test_a_sound_store_passes():
    check(*sound())


@pytest.mark.parametrize(
    "harm",
    [
        lose_the_last,
        lose_one,
        repeat_one,
        swap_two,
        commit_the_aborted,
        forget_an_offset,
        mix_two_attempts,
        copy_twice,
        lose_a_share,
        move_a_groups_offset,
        move_what_a_reader_saw,
        damage_a_file,
    ],
)
def test_harm_is_noticed(harm):
    said, found = sound()
    harm(found)
    with pytest.raises(AssertionError):
        check(said, found)
