"""Journals of several processes: who dies leaves his, who stands still keeps his, the last one
removes all. What no file holds comes back from them, whoever appended it.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from commit_journals import SMALL, journal_of
from harness.crew import BUSY, QUIET, Crew, Member
from harness.member_main import Hand
from harness.waiting import eventually
from processes import store_calls
from processes.lanes import TOPIC, Lanes, make_store, records_of, write_lane
from reference_model import batch_codec as codec
from short_form import short_form

import eoslog
from eoslog.bindings.control_state import control_state
from eoslog.store.store import engine_of

PARTITIONS = 2
LARGE = {"eoslog.journal.bytes": 1 << 20}


def wait_for_journal(hand: Hand) -> None:
    eventually(lambda: journal_of(hand.store).journal.usable)


def journal_path(hand: Hand) -> str:
    return str(journal_of(hand.store).path)


def join_with_journals(crew: Crew, *names: str) -> list[Member]:
    members = [crew.join(name) for name in names]
    for member in members:
        member.call(wait_for_journal)
    return members


def leave_in_the_journal(member: Member) -> Path:
    """A record that only the member's journal has on the disk; the journal."""
    member.call(store_calls.append, TOPIC, ["first"])  # With a sync: the file is new.
    member.call(store_calls.append, TOPIC, ["in the journal"])
    return Path(member.call(journal_path))


def counts(hand: Hand) -> dict[str, int]:
    return journal_of(hand.store).journal.counts


def synced_up_to(hand: Hand, partition: int) -> list[int]:
    found = engine_of(hand.store).partition(TOPIC, partition)
    return [found.recovery_point, found.log_end_offset]


def lose_what_was_not_synced(path: Path) -> int:
    """The power went: of each log there is what its files' last sync covered. How many bytes of
    batches are gone.
    """
    lost_bytes = 0
    for page in (path / "state" / "control").iterdir():
        state = control_state(str(page))
        assert state is not None
        for file in (path / page.name).glob("*.log"):
            data = file.read_bytes()
            kept = 0
            with suppress(codec.CodecError):  # Behind the last one.
                for batch in codec.iter_batches(data):
                    if batch.last_offset >= state.recovery_point:
                        lost_bytes += len(batch.data)
                    else:
                        kept += len(batch.data)
            file.write_bytes(data[:kept] + bytes(len(data) - kept))
    return lost_bytes


def journals_in(path: Path) -> list[Path]:
    return sorted((path / "state" / "journal").iterdir())


@pytest.mark.parametrize(
    ("background", "sizes"),
    short_form(product([QUIET, BUSY], [SMALL, LARGE]), (QUIET, SMALL), (BUSY, LARGE)),
)
def test_all_die_and_the_power_goes(tmp_path, sizes, background):
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    known, lost_bytes = Lanes(), 0
    with Crew(path, durability="always", config=background | sizes) as crew:
        for _ in range(3):
            writers = join_with_journals(crew, "writer", "writer", "writer")
            for number, member in enumerate(writers):
                member.begin(write_lane, f"lane-{number}", number % PARTITIONS, named=True)
            for member in writers:
                member.hear("ack")
            time.sleep(0.15)
            crew.kill_all()
            for member in writers:
                known.take(member.all_said)
            crew.forget_the_dead()
            assert len(journals_in(path)) >= 3
            lost_bytes += lose_what_was_not_synced(path)
    assert lost_bytes > 0
    with eoslog.open(path) as store:
        known.check(records_of(store))
        assert store.verify() == []
    assert not journals_in(path)
    assert min(lane.acknowledged for lane in known.by_name.values()) > 0


def test_one_dies_and_another_syncs_what_it_left(tmp_path):
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    with Crew(path, durability="always", config=BUSY | LARGE) as crew:
        ann, bob = join_with_journals(crew, "ann", "bob")
        left = leave_in_the_journal(ann)
        ann.kill()
        eventually(lambda: not left.exists())
        assert bob.call(synced_up_to, 0) == [2, 2]
        assert journals_in(path) == [Path(bob.call(journal_path))]
        crew.all_leave()
    assert not journals_in(path)


def test_what_one_left_is_retired_whoever_notices_its_death_first(tmp_path):
    """One that joins settles what is open of dead ones, and knows nothing of their journals."""
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    with Crew(path, durability="always", config=QUIET | LARGE) as crew:
        ann, bob = join_with_journals(crew, "ann", "bob")
        left = leave_in_the_journal(ann)
        unfinished = left.with_name(left.name[:-8] + "01234567.tmp")
        unfinished.write_bytes(bytes(4096))  # It was about to have a larger one.
        bob.call(store_calls.stop_background)
        ann.kill()
        carl = crew.join("carl", durability="always", config=QUIET)
        eventually(lambda: not left.exists() and not unfinished.exists())
        assert carl.call(synced_up_to, 0) == [2, 2]
        assert journals_in(path) == [Path(bob.call(journal_path))]
        eventually(lambda: len(list((path / "state" / "processes").iterdir())) == 2)
        crew.all_leave()
    assert not journals_in(path)


def test_decisions_and_offsets_of_one_that_died_are_synced_too(tmp_path):
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    with Crew(path, durability="always", config=QUIET | LARGE) as crew:
        ann, _ = join_with_journals(crew, "ann", "bob")
        ann.call(store_calls.init, "pays")
        for number in range(2):  # The first one makes the files, and syncs them.
            ann.call(commit_with_offsets, "pays", number)
        left = Path(ann.call(journal_path))
        ann.kill()
        eventually(lambda: not left.exists())
        crew.kill_all()
    assert lose_what_was_not_synced(path) == 0
    with eoslog.open(path) as store:
        assert list(records_of(store)[0].values()) == [b"0", b"1"]
        assert store.groups()["readers"][eoslog.TopicPartition(TOPIC, 1)].offset == 1


def commit_with_offsets(hand: Hand, transactional_id: str, number: int) -> None:
    producer = hand.kept[transactional_id]
    with producer.transaction():
        producer.append(TOPIC, partition=0, values=[b"%d" % number])
        offsets = {eoslog.TopicPartition(TOPIC, 1): number}
        producer.send_offsets_to_transaction(offsets, "readers")


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_transactions_of_processes_that_die_with_the_power_are_whole(tmp_path, sizes):
    """Data and decision go to the disk together: a commit is in all partitions, or in none."""
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    acknowledged: dict[str, int] = {}
    lost_bytes = 0
    with Crew(path, durability="commit", config=BUSY | sizes) as crew:
        for life in range(3):
            writers = join_with_journals(crew, "writer", "writer", "writer")
            for number, member in enumerate(writers):
                member.begin(commit_again_and_again, f"id-{number}", life * 100_000)
            for member in writers:
                member.hear("ack")
            time.sleep(0.2)
            crew.kill_all()
            for member in writers:
                for _, word, rest in member.all_said:
                    if word == "ack":
                        acknowledged[f"{rest[0]}:{life}"] = rest[1]
            crew.forget_the_dead()
            lost_bytes += lose_what_was_not_synced(path)
    assert lost_bytes > 0
    with eoslog.open(path) as store:
        found = [list(values.values()) for values in records_of(store).values()]
        assert store.verify() == []
    by_life: dict[str, list[list[int]]] = {}
    for partition, values in enumerate(found):
        for value in values:
            owner, number = value.decode().split(":")
            life = int(number) // 100_000
            both = by_life.setdefault(f"{owner}:{life}", [[] for _ in range(PARTITIONS)])
            both[partition].append(int(number) % 100_000)
    for name, last in acknowledged.items():
        one, other = by_life[name]
        assert one == other == list(range(len(one))), name
        assert last % 100_000 < len(one), name


def commit_again_and_again(hand: Hand, transactional_id: str, first: int) -> None:
    producer = hand.store.producer(transactional_id=transactional_id)
    producer.init_transactions()
    number = first
    while True:
        with producer.transaction():
            for partition in range(PARTITIONS):
                value = f"{transactional_id}:{number}".encode()
                producer.append(TOPIC, partition=partition, values=[value])
        hand.say("ack", transactional_id, number)
        number += 1


def test_one_that_stands_still_keeps_its_journal(tmp_path):
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    with Crew(path, durability="always", config=QUIET | LARGE) as crew:
        ann, bob = join_with_journals(crew, "ann", "bob")
        for member in (ann, bob):
            member.call(store_calls.append, TOPIC, ["first"])
        ann.call(store_calls.append, TOPIC, ["in the journal"])
        left = Path(ann.call(journal_path))
        ann.call(store_calls.stop_background)
        ann.signal(signal.SIGSTOP)
        time.sleep(0.05)
        bob.call(store_calls.append, TOPIC, ["of bob"])
        bob.leave()
        assert left.exists()
        assert not (path / ".kafka_cleanshutdown").exists()
        carl = crew.join("carl")
        carl.call(wait_for_journal)
        carl.call(store_calls.append, TOPIC, ["of carl"])
        ann.signal(signal.SIGCONT)
        ann.call(store_calls.append, TOPIC, ["later"])
        before = ann.call(counts)["records"]
        ann.call(store_calls.append, TOPIC, ["later still"])
        assert ann.call(counts)["records"] == before + 1
        carl.leave()
        ann.leave()
        assert (path / ".kafka_cleanshutdown").exists()
    assert not journals_in(path)
    with eoslog.open(path) as store:
        values = list(records_of(store)[0].values())
    assert values == [
        b"first", b"first", b"in the journal", b"of bob", b"of carl", b"later", b"later still"
    ]  # fmt: skip


def test_what_another_process_made_durable_needs_no_sync_here(tmp_path):
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    with Crew(path, durability="commit", config=QUIET | LARGE) as crew:
        ann, bob = join_with_journals(crew, "ann", "bob")
        for member in (ann, bob):
            member.call(store_calls.append, TOPIC, ["first"], name=str(member.name))
            member.call(flush, str(member.name))
        ann.call(store_calls.append, TOPIC, ["of ann"], name=ann.name)
        before = ann.call(counts)["records"], bob.call(counts)["records"]
        bob.call(store_calls.append, TOPIC, ["of bob"], name=bob.name)
        bob.call(flush, bob.name)
        ann.call(flush, ann.name)
        after = ann.call(counts)["records"], bob.call(counts)["records"]
        assert after == (before[0], before[1] + 1)
        crew.kill_all()
    assert lose_what_was_not_synced(path) > 0
    with eoslog.open(path) as store:
        assert list(records_of(store)[0].values())[-2:] == [b"of ann", b"of bob"]


def flush(hand: Hand, name: str) -> None:
    hand.kept[f"producer {name}"].flush()
