"""A session of a store: from the first opener to the last closer, whoever dies in between."""

from __future__ import annotations

import random
import signal
import time

import pytest
from harness.crew import QUIET, Crew, MemberError
from processes import store_calls
from processes.lanes import TOPIC, Lanes, make_store, records_of, value_of, write_lane
from store_copies import copy_store

import eoslog
from eoslog.store.store import parts_of

CLEAN = ".kafka_cleanshutdown"


def was_stopped_uncleanly(hand):
    return parts_of(hand.store).files.was_stopped_uncleanly


def open_write_close(hand, path, lane, rounds, options):
    """Join, write a record, leave, again and again."""
    for number in range(rounds):
        hand.open(path, **options)
        with hand.store.producer(name=lane) as producer:
            position = producer.next_sequence(TOPIC, 0)
            hand.say("start", lane, position)
            hand.say("try", lane, position, 1)
            result = producer.append(TOPIC, partition=0, values=[value_of(lane, position)])
            hand.say("ack", lane, position, 1, result.base_offset)
        hand.close()
        hand.say("round", number)


def known_of(crew):
    known = Lanes()
    for member in crew.members:
        known.take(member.all_said)
    return known


def test_a_joiner_finds_everything_and_the_last_closer_closes(tmp_path):
    path = tmp_path / "store"
    with Crew(path) as crew:
        ann = crew.join("ann")
        ann.call(store_calls.make_topic, "one")
        ann.call(store_calls.append, "one", ["a", "b"], name="load")
        ann.call(store_calls.init, "t")
        ann.call(store_calls.commit_once, "t", "one", {"0": ["c"]})
        bob = crew.join("bob")
        assert bob.call(store_calls.topic_names) == ["one"]
        assert bob.call(store_calls.values_of, "one") == ["a", "b", "c"]
        assert bob.call(store_calls.transactions).keys() == {"t"}
        assert not (path / CLEAN).exists()
        bob.call(store_calls.append, "one", ["d"])
        ann.leave()
        assert not (path / CLEAN).exists(), "somebody has it open"
        carl = crew.join("carl")
        assert carl.call(store_calls.values_of, "one") == ["a", "b", "c", "d"]
        bob.leave()
        carl.call(store_calls.append, "one", ["e"])
        carl.leave()
        assert (path / CLEAN).exists()
        late = crew.join("late")
        assert not late.call(was_stopped_uncleanly)
        assert late.call(store_calls.values_of, "one") == ["a", "b", "c", "d", "e"]
        assert late.call(store_calls.verify) == []
        late.leave()


def test_many_open_a_new_store_at_once(tmp_path):
    path = tmp_path / "store"
    with Crew(path) as crew:
        members = [crew.begin_to_join() for _ in range(6)]
        for member in members:
            member.answer()
        for number, member in enumerate(members):
            member.call(store_calls.make_topic, f"topic-{number}")
        names = [f"topic-{number}" for number in range(6)]
        for member in members:
            assert member.call(store_calls.topic_names) == names
        crew.all_leave()
        assert (path / CLEAN).exists()


def test_everybody_dies_and_the_next_opener_recovers(tmp_path):
    path = tmp_path / "store"
    make_store(path, 2)
    known = Lanes()
    with Crew(path) as crew:
        for _ in range(4):
            writers = [crew.join("writer") for _ in range(3)]
            for number, member in enumerate(writers):
                member.begin(write_lane, f"lane-{number}", number % 2, named=True)
            for member in writers:
                member.hear("ack")
            time.sleep(0.1)
            crew.kill_all()
            for member in writers:
                known.take(member.all_said)
            assert not (path / CLEAN).exists()
        late = crew.join("late")
        assert late.call(was_stopped_uncleanly)
        late.leave()
    with eoslog.open(path) as store:
        known.check(records_of(store))
        assert store.verify() == []
    assert min(lane.acknowledged for lane in known.by_name.values()) > 0


@pytest.mark.parametrize("copied", [True, False])
def test_one_dies_while_others_live(tmp_path, copied):
    """Nothing is lost, the living go on, and the last of them closes cleanly, for the dead too."""
    path = tmp_path / "store"
    make_store(path, 3)
    with Crew(path) as crew:
        writers = [crew.join("writer") for _ in range(3)]
        for number, member in enumerate(writers[:2]):
            member.begin(write_lane, f"lane-{number}", number, named=True, seconds=1.0)
        # A partition that only the dying one has open.
        writers[2].begin(write_lane, "lane-2", 2, named=True)
        writers[2].hear("ack")
        time.sleep(0.2)
        writers[2].kill()
        for member in writers[:2]:
            member.answer()
        if copied:
            heir = crew.join("heir")
            heir.begin(write_lane, "lane-2", 2, named=True, seconds=0.3)
            heir.answer()
        crew.all_leave()
        known = known_of(crew)
    assert (path / CLEAN).exists()
    with eoslog.open(path) as store:
        assert not parts_of(store).files.was_stopped_uncleanly
        known.check(records_of(store))
        assert store.verify() == []


def test_one_leaves_and_the_last_one_dies(tmp_path):
    path = tmp_path / "store"
    make_store(path, 2)
    with Crew(path) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        ann.begin(write_lane, "lane-0", 0, named=True, seconds=0.3)
        bob.begin(write_lane, "lane-1", 1, named=True)
        ann.answer()
        ann.leave()
        assert not (path / CLEAN).exists()
        bob.kill()
        assert not (path / CLEAN).exists()
        known = known_of(crew)
        heir = crew.join("heir")
        assert heir.call(was_stopped_uncleanly)
        heir.leave()
    with eoslog.open(path) as store:
        known.check(records_of(store))
        assert store.verify() == []


def test_opening_and_closing_by_many(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        members = [crew.hire() for _ in range(4)]
        for number, member in enumerate(members):
            member.begin(open_write_close, str(path), f"lane-{number}", 8, crew.options)
        for member in members:
            member.answer()
        known = known_of(crew)
    assert (path / CLEAN).exists()
    assert [lane.acknowledged for lane in known.by_name.values()] == [8] * 4
    with eoslog.open(path) as store:
        known.check(records_of(store))
        assert store.verify() == []


def test_killed_while_opening_and_closing(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    noise = random.Random(20_261_121)
    known = Lanes()
    with Crew(path) as crew:
        for _ in range(25):
            members = [crew.hire() for _ in range(3)]
            for number, member in enumerate(members):
                member.begin(open_write_close, str(path), f"lane-{number}", 1000, crew.options)
            for member in noise.sample(members, 3):
                time.sleep(noise.random() * 0.08)
                member.kill()
            for member in members:
                known.take(member.all_said)
            crew.forget_the_dead()
    with eoslog.open(path) as store:
        known.check(records_of(store))
        assert store.verify() == []


def test_all_must_open_it_alike(tmp_path):
    path = tmp_path / "store"
    with Crew(path, durability="commit") as crew:
        crew.join("ann")
        other = crew.hire("other")
        with pytest.raises(MemberError, match=r"StoreInUseError.*durability"):
            other.call(open_with, str(path), "process")
        other.call(open_with, str(path), "commit")
        crew.all_leave()
    with Crew(tmp_path / "store-2", durability="commit") as crew:
        member = crew.join()
        with pytest.raises(MemberError, match="StoreInUseError"):
            member.call(store_calls.join_again, durability="commit")
        member.call(store_calls.make_topic, "still-works")
        member.leave()


def open_with(hand, path, durability):
    hand.open(path, durability=durability)


def killed_store(path):
    """A store that was in use by two processes, both killed; what they had written."""
    make_store(path, 2)
    with Crew(path) as crew:
        writers = [crew.join("writer") for _ in range(2)]
        for number, member in enumerate(writers):
            member.begin(write_lane, f"lane-{number}", number, named=True)
        for member in writers:
            member.hear("ack")
        time.sleep(0.2)
        crew.kill_all()
        return known_of(crew)


@pytest.mark.parametrize("what", ["zeros", "noise", "gone", "cut", "of another time"])
def test_pages_of_a_dead_session_are_not_believed(tmp_path, what):
    """Control pages and the shared file are of a session: the next first opener trusts none."""
    path = tmp_path / "store"
    known = killed_store(path)
    pages = [one for one in (path / "state" / "control").rglob("*") if one.is_file()]
    pages += [path / "state" / "shared"]
    noise = random.Random(what)
    others = {one: noise.choice(pages).read_bytes() for one in pages}
    for page in pages:
        size = page.stat().st_size
        if what == "zeros":
            page.write_bytes(bytes(size))
        elif what == "noise":
            page.write_bytes(noise.randbytes(size))
        elif what == "gone":
            page.unlink()
        elif what == "cut":
            page.write_bytes(page.read_bytes()[: size // 3])
        else:  # Whole pages, of a log that is longer or shorter.
            page.write_bytes(others[page])
    with Crew(path) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        ann.call(store_calls.append, TOPIC, ["lane-0:x"], partition=0)
        assert bob.call(store_calls.values_of, TOPIC)[-1] == "lane-0:x"
        crew.all_leave()
    with eoslog.open(path) as store:
        found = records_of(store)
        del found[0][max(found[0])]
        known.check(found)
        assert store.verify() == []


def test_a_copy_of_a_store_that_is_open(tmp_path):
    """A copy made while others work is opened as after a power cut, and touches not the other."""
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        ann = crew.join("ann")
        ann.call(store_calls.append, TOPIC, ["a"])
        copy_store(path, tmp_path / "copy")
        with eoslog.open(tmp_path / "copy") as copied, copied.producer() as producer:
            assert parts_of(copied).files.was_stopped_uncleanly
            producer.append(TOPIC, partition=0, values=[b"in the copy"])
            assert list(records_of(copied)[0].values()) == [b"a", b"in the copy"]
        ann.call(store_calls.append, TOPIC, ["b"])
        assert ann.call(store_calls.values_of, TOPIC) == ["a", "b"]
        crew.all_leave()


def test_a_stopped_member_keeps_the_session_and_goes_on_later(tmp_path):
    """A process that does not run (SIGSTOP) is not dead: the last closer is another."""
    path = tmp_path / "store"
    make_store(path, 2)
    # Its background thread is not to be stopped while it holds LMDB's lock for writing.
    with Crew(path, config=QUIET) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        ann.call(store_calls.append, TOPIC, ["a"])
        ann.call(store_calls.stop_background)
        ann.signal(signal.SIGSTOP)
        time.sleep(0.05)
        bob.call(store_calls.append, TOPIC, ["b"])
        bob.leave()
        assert not (path / CLEAN).exists()
        carl = crew.join("carl")
        carl.call(store_calls.append, TOPIC, ["c"])
        ann.signal(signal.SIGCONT)
        assert ann.call(store_calls.values_of, TOPIC) == ["a", "b", "c"]
        carl.leave()
        ann.leave()
        assert (path / CLEAN).exists()
