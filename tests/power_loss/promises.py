"""What a store must hold after a power cut, by the notes of its work, and the check of it.

Of every work: all of it or nothing; everything that was promised; nothing that was not tried;
nothing twice; plain records a beginning of what was sent, so that their producer goes on right
there. A store that promises nothing of a cut may have torn transactions, a name that stands too far
back, a transaction that is decided anew beside its markers, and a staged job that cannot be
completed; those are counted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from power_loss.workload import (
    APP,
    BULK,
    IDS,
    NAME,
    PLACES,
    PLAIN_GROUP,
    PREPARING,
    READERS,
    SOURCE,
    TEMPORARY,
    TOPIC,
    Workload,
    values_of_place,
)
from staged_jobs import load
from stores import QUIET, check_nothing_is_open

import eoslog
from eoslog import TopicPartition
from eoslog.errors import OutOfOrderSequenceError, ProducerFencedError, StagedJobIncompleteError
from eoslog.inspect.transaction_verification import AHEAD, OLDER
from eoslog.staging.lost_files import is_of_damaged
from eoslog.store.store import abandon, parts_of

Key = tuple[Any, ...]
JOB_IS_LOST = "a decided job whose staged files are lost: a repair completes the rest"
JOB_IS_TWICE = "a staged job that is in twice: that it was complete is lost"
DECISION_IS_LOST = "a transaction that is not everywhere as it was decided: a part of it is lost"
_SEQUENCES_AGAIN = re.compile(
    r"the batch of producer \d+, epoch \d+, begins with sequence 0, and \d+ was to follow"
)
_OTHER_DECISION = re.compile(
    r"a marker (commits|aborts) the transaction of producer \d+, epoch \d+; "
    r"its coordinator decided to (abort|commit) it"
    rf"|({AHEAD}|{OLDER}).*"
)
TEMPORARY_PLACE = f"{TEMPORARY}/0"


class Promises:
    """The notes up to a moment."""

    def __init__(self, durability: str, notes: list[dict[str, Any]], count: int) -> None:
        """The first `count` of the notes were made; of those behind only what they explain."""
        self.durability = durability
        self.tried: dict[Key, dict[str, list[bytes]]] = {}
        self.plain: set[Key] = set()
        self.offsets: dict[Key, int] = {}
        self.required: set[Key] = set()
        self.gone: dict[str, set[bytes]] = {place: set() for place in PLACES}
        # Of what is gone: what was being deleted at the moment, and may be neither gone nor synced.
        self.going: dict[str, set[bytes]] = {place: set() for place in PLACES}
        self.surely_gone: dict[str, set[bytes]] = {place: set() for place in PLACES}
        self.group_tried = self.group_promised = 0
        self.incarnation, self.topic = 0, "deleted"
        retaining = False
        for note in notes[:count]:
            self._take(note)
            retaining = note["note"] == "retaining" or (retaining and note["note"] != "retained")
        if retaining:
            note = next(note for note in notes[count:] if note["note"] == "retained")
            for place, values in note["gone"].items():
                self.going[place] = {one.encode() for one in values} - self.gone[place]
            self._take(note | {"surely": False})

    def _take(self, note: dict[str, Any]) -> None:
        what = note["note"]
        if what == "try":
            key = tuple(note["work"])
            self.tried[key] = {
                place: [one.encode() for one in ones] for place, ones in note["values"].items()
            }
            if note.get("plain"):
                self.plain.add(key)
            if note.get("offset") is not None:
                self.offsets[key] = note["offset"]
        elif what == "promise":
            self.required.update(tuple(work) for work in note["works"])
        elif what == "offset_try":
            self.group_tried = note["offset"]
        elif what == "offset_promise":
            self.group_promised = note["offset"]
        elif what == "retained":
            for place, values in note["gone"].items():
                self.gone[place].update(one.encode() for one in values)
                if note["surely"]:
                    self.surely_gone[place].update(one.encode() for one in values)
        elif what in ("creating", "created", "deleting", "deleted"):
            self.incarnation, self.topic = note["incarnation"], what

    # The check of what is seen.

    def check(self, seen: dict[str, list[bytes]]) -> list[str]:
        """Raises AssertionError; what a store without promises has lost or doubled, in words."""
        lost: list[str] = []
        owners = {
            value: key
            for key, work in self.tried.items()
            for ones in work.values()
            for value in ones
        }
        there: dict[Key, dict[str, list[bytes]]] = {}
        for place, values in seen.items():
            if len(set(values)) != len(values):
                twice = {owners[one][0] for one in values if values.count(one) > 1}
                is_staged = self.durability == "process" and twice <= {APP, BULK}
                assert is_staged, f"{place}: a record is there twice"
                lost.append(JOB_IS_TWICE)
                seen = {**seen, place: list(dict.fromkeys(values))}
        for place, values in seen.items():
            unknown = [value[:40] for value in values if value not in owners]
            assert not unknown, f"{place}: never committed, and seen: {unknown[:3]}"
            back = self.surely_gone.get(place, set()).intersection(values)
            assert not back, f"{place}: deleted, and seen: {sorted(back)[:3]}"
            for value in values:
                there.setdefault(owners[value], {}).setdefault(place, []).append(value)
        self._check_topic(seen, there)
        for key, work in self.tried.items():
            if self._is_of_topic(key) and TEMPORARY_PLACE not in seen:
                continue
            self._check_work(key, work, there.get(key, {}))
        self._check_order(seen, owners)
        return lost

    def _is_of_topic(self, key: Key) -> bool:
        return len(key) == 3 and key[2] == TEMPORARY_PLACE

    def _check_topic(self, seen: dict[str, list[bytes]], there: dict[Key, Any]) -> None:
        exists = TEMPORARY_PLACE in seen
        if self.topic == "created":
            assert exists, "a topic that was made is gone"
        elif self.topic == "deleted":
            assert not exists, "a topic that was deleted is there"
        incarnations = {key[0] for key in there if self._is_of_topic(key)}
        assert incarnations <= {f"life{self.incarnation}"}, f"{incarnations}: of a deleted topic"

    def _check_work(self, key: Key, work: dict[str, list[bytes]], found: dict[str, Any]) -> None:
        gone = {place: self.gone.get(place, set()) for place in work}
        is_whole = all(
            [one for one in found.get(place, []) if one not in gone[place]]
            == [one for one in values if one not in gone[place]]
            for place, values in work.items()
        )
        if key in self.required:
            if self._is_of_topic(key) and key[0] != f"life{self.incarnation}":
                return
            if self._is_of_topic(key) and self.topic == "deleting":
                return
            assert is_whole, f"{key}: promised, and not whole"
        elif found and (key in self.plain or self.durability != "process"):
            assert is_whole, f"{key} is not whole"

    def _check_order(self, seen: dict[str, list[bytes]], owners: dict[bytes, Key]) -> None:
        """Of each owner its works follow each other; of a plain one none is missing between."""
        for place, values in seen.items():
            last: dict[Any, int] = {}
            for value in values:
                owner, number = owners[value][:2]
                assert last.get(owner, -1) <= number, f"{place}: {owners[value]} comes too late"
                last[owner] = number
            present = {owners[value] for value in values}
            newest = max((key[1] for key in present & self.plain), default=-1)
            for key in self.plain:
                if key[2] == place and key[1] < newest and key[0] == _last_owner(self, place):
                    gone = set(self.tried[key][place]) <= self.gone.get(place, set())
                    assert key in present or gone, f"{place}: {key} is missing before {newest}"

    def plain_counts(self, seen: dict[str, list[bytes]], place: str) -> range:
        """How many plain records the log of a place may have had."""
        ordered = [
            value
            for key in sorted(self.plain, key=lambda key: key[1])
            if key[2] == place
            for value in self.tried[key][place]
        ]
        there = set(seen[place])
        going = self.going[place] - there
        had = [value in there or value in self.gone[place] - going for value in ordered]
        newest = max((at for at, one in enumerate(had) if one), default=-1)
        # What is deleted was synced, and is older than what is left; the rest was lost by the cut.
        before = sum(value in going for value in ordered[: newest + 1])
        behind = sum(value in going for value in ordered[newest + 1 :])
        is_empty = there.isdisjoint(ordered)
        least = sum(had) + before
        return range(least, least + (behind if is_empty else 0) + 1)


def _last_owner(promises: Promises, place: str) -> str:
    return f"life{promises.incarnation}" if place == TEMPORARY_PLACE else NAME


def look(store: eoslog.Store) -> dict[str, list[bytes]]:
    places = [*PLACES, *([TEMPORARY_PLACE] if TEMPORARY in store.topics() else [])]
    return {place: values_of_place(store, place) for place in places}


def _decide_prepared(store: eoslog.Store) -> None:
    producer = store.producer(transactional_id=PREPARING)
    prepared = producer.init_transactions(keep_prepared=True)
    if prepared is not None:
        assert producer.complete_transaction(prepared)
    producer.close()


def check_state(path: Path, workload: Workload, promises: Promises, *, deeply: bool) -> list[str]:
    """Open what a cut left, look at everything, go on with every producer, and look again.

    What a store that promises nothing of a cut has lost beside records, in words.
    """
    if (path / ".kafka_cleanshutdown").exists():
        assert not list((path / "state").glob("journal/*")), "journals beside a clean stop"
    store = eoslog.open(path, durability=workload.durability, config=QUIET)
    try:
        assert set(store.topics()) - {TEMPORARY} == {TOPIC, SOURCE}
        if any(key[0] == PREPARING for key in promises.tried):
            _decide_prepared(store)
        seen = look(store)
        lost = promises.check(seen)
        _check_offsets(store, promises, seen)
        if promises.durability == "process" and parts_of(store).staged.pending.by_name:
            # A repair completes what is left of it, and the application goes on.
            for one in filter(is_of_damaged, store.verify()):
                Path(str(one["path"])).unlink()
            assert parts_of(store).staged.give_up_lost_files()
            check_nothing_is_open(store)
            return [*lost, JOB_IS_LOST]
        check_nothing_is_open(store)
        added = _go_on(store, promises, seen, lost)
        if JOB_IS_LOST in lost:
            return lost
        check_nothing_is_open(store)
        now = look(store)
        assert now == {place: values + added.get(place, []) for place, values in seen.items()}
        if deeply:
            store.close()
            store = eoslog.open(path, durability=workload.durability, config=QUIET)
            assert look(store) == now
            lost += _verified(store, promises, is_twice=JOB_IS_TWICE in lost)
    finally:
        if not store.closed:
            abandon(store)
    return lost


def _verified(store: eoslog.Store, promises: Promises, *, is_twice: bool) -> list[str]:
    """Nothing is wrong with the store, but what a cut does to one without promises, in words."""
    problems = store.verify()
    if promises.durability != "process":
        assert problems == [], problems
    reasons = [str(one["reason"]) for one in problems]
    if is_twice:
        # Each of the job's producers begins with sequence 0 each time.
        reasons = [one for one in reasons if not _SEQUENCES_AGAIN.fullmatch(one)]
    others = [one for one in reasons if not _OTHER_DECISION.fullmatch(one)]
    assert others == [], problems
    return [DECISION_IS_LOST] if reasons else []


def _check_offsets(store: eoslog.Store, promises: Promises, seen: dict[str, list[bytes]]) -> None:
    groups = store.groups()
    found = groups.get(PLAIN_GROUP, {}).get(TopicPartition(SOURCE, len(IDS)))
    offset = found.offset if found else 0
    assert promises.group_promised <= offset <= promises.group_tried, f"group at {offset}"
    if promises.durability == "process":
        return
    values = {value for ones in seen.values() for value in ones}
    for index, transactional_id in enumerate(IDS):
        newest = 0
        for key, offset in promises.offsets.items():
            there = any(
                one in values or one in promises.gone[place]
                for place, ones in promises.tried[key].items()
                for one in ones
            )
            if key[0] == transactional_id and there:
                newest = max(newest, offset)
        found = groups.get(READERS, {}).get(TopicPartition(SOURCE, index))
        assert (found.offset if found else 0) == newest, f"{transactional_id}: the group's offset"


def _go_on(
    store: eoslog.Store, promises: Promises, seen: dict[str, list[bytes]], lost: list[str]
) -> dict[str, list[bytes]]:
    added: dict[str, list[bytes]] = {place: [] for place in seen}

    def append(producer: Any, place: str, value: bytes) -> None:
        topic, number = place.split("/")
        producer.append(topic, partition=int(number), values=[value])
        added[place].append(value)

    writer = store.producer(name=NAME)
    for place in seen:
        topic, number = place.split("/")
        if place != TEMPORARY_PLACE:
            position = writer.next_sequence(topic, int(number))
            counts = promises.plain_counts(seen, place)
            if promises.durability == "process" and position < counts.start:
                lost.append("a name that stands too far back")
            else:
                assert position in counts, f"{place}: its producer is at {position}, not {counts}"
        try:
            append(writer, place, b"after")
        except (OutOfOrderSequenceError, ProducerFencedError):
            # The name's newest epoch is lost, and records of it are not: the next epoch goes on.
            assert promises.durability == "process"
            lost.append("a name whose newest epoch is gone")
            writer = store.producer(name=NAME)
            append(writer, place, b"after")
    for transactional_id in IDS[:2]:
        producer = store.producer(transactional_id=transactional_id)
        producer.init_transactions()
        producer.begin_transaction()
        for place in PLACES:
            append(producer, place, b"after:" + transactional_id.encode())
        producer.commit_transaction()
    try:
        _go_on_staged(store, promises, added)
    except StagedJobIncompleteError:
        assert promises.durability == "process"
        lost.append(JOB_IS_LOST)
    writer.flush()
    return added


def _go_on_staged(store: eoslog.Store, promises: Promises, added: dict[str, list[bytes]]) -> None:
    if any(key[0] == BULK for key in promises.tried):
        topic, number = PLACES[0].split("/")
        load(store, BULK, {(topic, int(number)): [b"after:bulk"]})
        added[PLACES[0]].append(b"after:bulk")
    if any(key[0] == APP for key in promises.tried):
        run_id = store.begin_run(APP)
        state = store.application(APP)
        version = -1 if state is None else state.version
        assert state is None or state.state == "complete"
        if promises.durability != "process":
            newest = max((key[1] for key in promises.required if key[0] == APP), default=-1)
            assert version >= newest, f"job {newest} was promised, and the last one is {version}"
        if version >= 0:
            assert not store.commit_staged(APP, version, [], run_id).committed
        assert store.commit_staged(APP, version + 1, [], run_id).committed
