"""Topics that one process creates and deletes while others use them."""

from __future__ import annotations

import random
import time

import pytest
from harness.crew import QUIET, Crew, MemberError
from harness.waiting import eventually
from processes import store_calls
from processes.store_calls import make_topic

import eoslog
from eoslog.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from eoslog.storage.producer_rows import ProducerRows
from eoslog.store.store import engine_of, parts_of


def test_a_topic_is_there_for_everybody_at_once(tmp_path):
    with Crew(tmp_path / "store") as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        for number in range(10):
            name = f"topic-{number}"
            ann.call(make_topic, name, 2)
            assert name in bob.call(store_calls.topic_names)
            bob.call(store_calls.append, name, ["x"], partition=1)
            assert ann.call(store_calls.values_of, name, 1) == ["x"]
            with pytest.raises(MemberError, match="TopicAlreadyExistsError"):
                bob.call(make_topic, name, 2)
            (ann if number % 2 else bob).call(store_calls.delete_topic, name)
            for member in (ann, bob):
                assert member.call(store_calls.topic_names) == []
                with pytest.raises(MemberError, match="UnknownTopicOrPartitionError"):
                    member.call(store_calls.append, name, ["x"], partition=1)
                with pytest.raises(MemberError, match="UnknownTopicOrPartitionError"):
                    member.call(store_calls.values_of, name)
        crew.all_leave()
    assert not list((tmp_path / "store").glob("topic-*"))


@pytest.mark.parametrize("exist_ok", [False, True])
def test_several_create_the_same_topic(tmp_path, exist_ok):
    with Crew(tmp_path / "store") as crew:
        members = [crew.join() for _ in range(4)]
        for number in range(10):
            for member in members:
                member.begin(make_topic, f"topic-{number}", 3, None, exist_ok)
            ids, refused = [], 0
            for member in members:
                try:
                    ids.append(member.answer())
                except MemberError as error:
                    assert error.kind == "TopicAlreadyExistsError"
                    refused += 1
            assert len(set(ids)) == 1
            assert refused == (0 if exist_ok else 3)
        crew.all_leave()


def test_deleted_under_a_producer_and_a_waiting_consumer(tmp_path):
    with Crew(tmp_path / "store") as crew:
        ann, bob, carl = crew.join("ann"), crew.join("bob"), crew.join("carl")
        late_s = []
        for number in range(5):
            ann.call(make_topic, "t")
            bob.call(store_calls.append, "t", ["a"], name=f"load-{number}")
            carl.call(store_calls.keep_consumer, "t")
            assert carl.call(store_calls.poll) == ["a"]
            carl.begin(store_calls.poll, 100.0)
            time.sleep(0.05)
            ann.call(store_calls.delete_topic, "t")
            asked_s = time.monotonic()
            with pytest.raises(MemberError, match="UnknownTopicOrPartitionError"):
                carl.answer()
            late_s.append(time.monotonic() - asked_s)
            with pytest.raises(MemberError, match="UnknownTopicOrPartitionError"):
                bob.call(store_calls.append, "t", ["b"], name=f"load-{number}")
        # Most of them: any process may stand still for a while.
        assert sorted(late_s)[2] < 5, f"a waiting consumer is told late: {late_s}"
        crew.all_leave()


def test_a_topic_deleted_and_made_again_begins_anew_for_everybody(tmp_path):
    with Crew(tmp_path / "store") as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        ids = set()
        for number in range(10):
            ids.add(ann.call(make_topic, "t"))
            first, _ = bob.call(store_calls.append, "t", [f"{number}", "b"], name="load")
            assert first == 0
            assert ann.call(store_calls.append, "t", ["c"], name=f"other-{number}") == [2, 2]
            assert bob.call(store_calls.values_of, "t") == [f"{number}", "b", "c"]
            assert bob.call(store_calls.next_sequence, "t", name="load") == 2
            ann.call(store_calls.delete_topic, "t")
            # Not looked at by bob in between, every other time.
            if number % 2:
                assert bob.call(store_calls.topic_names) == []
        assert len(ids) == 10
        crew.all_leave()


def test_deleted_with_a_transaction_of_another_process_open(tmp_path):
    with Crew(tmp_path / "store") as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        ann.call(make_topic, "stays")
        ann.call(make_topic, "goes")
        bob.call(store_calls.init, "t")
        bob.call(store_calls.begin, "t")
        bob.call(store_calls.send, "t", "goes", {"0": ["lost"]})
        bob.call(store_calls.send, "t", "stays", {"0": ["kept"]})
        ann.call(store_calls.delete_topic, "goes")
        bob.call(store_calls.commit, "t")
        assert ann.call(store_calls.values_of, "stays") == ["kept"]
        assert ann.call(store_calls.topic_names) == ["stays"]
        crew.all_leave()


def churn_topics(hand, seed, seconds):
    """Create, use and delete topics that others create, use and delete too."""
    noise = random.Random(seed)
    store, end_s, done = hand.store, time.monotonic() + seconds, 0
    while not done or time.monotonic() < end_s:
        name = f"topic-{noise.randrange(4)}"
        try:
            what = noise.random()
            if what < 0.3:
                store.create_topic(name, noise.randint(1, 3))
            elif what < 0.5:
                store.delete_topic(name)
            elif what < 0.8:
                with store.producer() as producer:
                    for _ in range(5):
                        producer.append(name, partition=0, values=[b"x" * 100])
            else:
                store_calls.values_of(hand, name)
            done += 1
        except (TopicAlreadyExistsError, UnknownTopicOrPartitionError):
            pass
    return done


def hold_partition(hand, topic):
    hand.kept["held"] = engine_of(hand.store).partition(topic, 0)


def append_to_held(hand):
    hand.kept["held"].append_columns([b"late"])


def test_a_transactional_producer_goes_on_in_a_topic_that_was_made_again(tmp_path):
    """What it knows of the old one goes with the transaction that failed for it."""
    with Crew(tmp_path / "store") as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        for topic in ("goes", "stays"):
            ann.call(make_topic, topic)
        bob.call(store_calls.init, "t")
        bob.call(store_calls.commit_once, "t", "goes", {"0": ["before"]})
        ann.call(store_calls.delete_topic, "goes")
        ann.call(make_topic, "goes")
        for attempt in range(2):
            bob.call(store_calls.begin, "t")
            try:
                bob.call(store_calls.send, "t", "stays", {"0": [f"{attempt}"]})
                bob.call(store_calls.send, "t", "goes", {"0": [f"{attempt}"]})
                bob.call(store_calls.commit, "t")
                break
            except MemberError as error:
                assert "UnknownTopicOrPartitionError" in str(error)
                bob.call(store_calls.abort, "t")
        for topic in ("goes", "stays"):
            assert ann.call(store_calls.values_of, topic) == [f"{attempt}"]
        crew.all_leave()


@pytest.mark.parametrize("noticed", [False, True])
def test_a_position_in_a_deleted_topic_is_none_in_one_made_under_its_name(tmp_path, noticed):
    """Else the group would pass over the first records of the new one."""
    with Crew(tmp_path / "store") as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        ann.call(make_topic, "t")
        ann.call(store_calls.append, "t", ["old"] * 5)
        bob.call(store_calls.keep_consumer, "t", group="g", auto_offset_reset="earliest")
        assert bob.call(store_calls.poll) == ["old"] * 5
        ann.call(store_calls.delete_topic, "t")
        ann.call(make_topic, "t")
        ann.call(store_calls.append, "t", [f"{number}" for number in range(20)])
        if noticed:
            with pytest.raises(MemberError, match="UnknownTopicOrPartitionError"):
                bob.call(store_calls.poll)
        with pytest.raises(MemberError, match="UnknownTopicOrPartitionError: t-0: the topic was"):
            bob.call(store_calls.commit_positions)
        assert ann.call(store_calls.group_offsets, "g") == {}
        crew.all_leave()


def look_at_no_deletions(hand):
    """As if none of its threads had looked since."""
    parts_of(hand.store).files.partitions.follow_topics = lambda: None


def test_deleted_by_one_that_has_the_topic_of_that_name_before_it_open(tmp_path):
    """Those that have the newer one open are told, and not left to meet missing files."""
    with Crew(tmp_path / "store") as crew:
        late, other, user = crew.join("late"), crew.join("other"), crew.join("user")
        other.call(make_topic, "t")
        late.call(look_at_no_deletions)
        late.call(store_calls.append, "t", ["old"])
        other.call(store_calls.delete_topic, "t")
        other.call(make_topic, "t")
        user.call(hold_partition, "t")
        user.call(append_to_held)
        late.call(store_calls.delete_topic, "t")
        with pytest.raises(MemberError, match="LogClosedError"):
            user.call(append_to_held)
        crew.all_leave()


def test_the_last_to_leave_closes_a_topic_that_was_made_anew_behind_its_back(tmp_path):
    """What it has open of the deleted one does not keep it from seeing to the new one."""
    path = tmp_path / "store"
    with Crew(path) as crew:
        last, other = crew.join("last"), crew.join("other")
        other.call(make_topic, "t", 1)
        last.call(store_calls.append, "t", ["old"])
        other.call(store_calls.delete_topic, "t")
        other.call(make_topic, "t", 1)
        other.call(store_calls.append, "t", ["new"])
        other.leave()
        last.leave()
    assert (path / ".kafka_cleanshutdown").exists()
    with eoslog.open(path) as store:
        assert store.partition("t", 0).log_end_offset == 1
        assert store.verify() == []


def _once_the_rows_are_gone(hand, call):
    """`call`, but the deletion of the topic comes in between, whole."""
    topic_id = hand.store.topics()["t"].topic_id
    rows = ProducerRows(parts_of(hand.store).files.lmdb, topic_id, 0)

    def late(*arguments, **named):
        hand.say("late")
        eventually(lambda: rows.read_head() is None, "the rows stay")
        return call(*arguments, **named)

    return late


def leave_late(hand):
    """Close the store; its producers' rows are written once they are gone."""
    partition = engine_of(hand.store).partition("t", 0)
    partition.append_columns([b"1"])
    partition.producer_state.persist()
    with hand.store.producer() as producer:
        producer.append("t", partition=0, values=[b"2"])
    rows = partition.producer_state.rows
    rows.write_rows = _once_the_rows_are_gone(hand, rows.write_rows)
    hand.store.close()


def take_name_late(hand, what):
    """Take a name that has written to the topic; its position is asked for once that is gone."""
    with hand.store.producer(name="n") as producer:
        producer.append("t", partition=0, values=[b"1"])
    partition = engine_of(hand.store).partition("t", 0)
    partition.producer_state.persist()
    call = getattr(partition, what)
    setattr(partition, what, _once_the_rows_are_gone(hand, call))
    with hand.store.producer(name="n") as producer:
        return producer.producer_epoch


def test_one_that_closes_the_store_while_a_topic_goes(tmp_path):
    """Rows that were deleted on purpose are no damage."""
    with Crew(tmp_path / "store", config=QUIET) as crew:
        other, late = crew.join("other"), crew.join("late")
        other.call(make_topic, "t")
        late.begin(leave_late)
        late.hear("late")
        other.call(store_calls.delete_topic, "t")
        assert late.answer() is None
        other.leave()


def test_one_that_takes_a_name_while_a_topic_of_it_goes(tmp_path):
    with Crew(tmp_path / "store", config=QUIET) as crew:
        other, late = crew.join("other"), crew.join("late")
        other.call(make_topic, "t")
        late.begin(take_name_late, "producer")
        late.hear("late")
        other.call(store_calls.delete_topic, "t")
        assert late.answer() == 1
        crew.all_leave()


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("killed", [False, True])
def test_topics_come_and_go_in_all_processes(tmp_path, killed):
    path = tmp_path / "store"
    noise = random.Random(3)
    with Crew(path) as crew:
        for number in range(6):
            members = [crew.join() for _ in range(3)]
            for index, member in enumerate(members):
                member.begin(churn_topics, 10 * number + index, 60.0 if killed else 0.5)
            if killed:
                for member in members if number % 2 else members[:2]:
                    time.sleep(noise.random() * 0.2)
                    member.kill()
                if not number % 2:
                    crew.kill_all()
            else:
                assert all(member.answer() for member in members)
                seen = [member.call(store_calls.topic_names) for member in members]
                assert seen[0] == seen[1] == seen[2]
                crew.all_leave()
            crew.forget_the_dead()
    with eoslog.open(path) as store:
        wanted = {
            f"{t.name}-{number}" for t in store.topics().values() for number in range(t.partitions)
        }
        assert store.verify() == []
    # Metadata alone may be left of a creation that was cut short; the next one takes it over.
    there = {one.parent.name for one in path.glob("topic-*/*.log")}
    assert there <= wanted, "files of topics that are deleted"


def begin_with_offsets(hand, member):
    """A transaction with records of one topic and a group's offset in another one."""
    store = hand.store
    if member:
        consumer = hand.kept["reader"] = store.consumer("g")
        consumer.subscribe(["t"])
        assert consumer.poll(timeout=60)
    producer = hand.kept["producer"] = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.append("out", 0, values=[b"made of it"])
    if not member:
        producer.send_offsets_to_transaction({eoslog.TopicPartition("t", 0): 5}, "g")


def commit_with_offsets(hand, member):
    producer = hand.kept["producer"]
    if member:
        group = hand.kept["reader"].group_metadata()
        producer.send_offsets_to_transaction({eoslog.TopicPartition("t", 0): 5}, group)
    producer.commit_transaction()


@pytest.mark.parametrize("member", [False, True])
def test_no_group_is_moved_into_a_topic_that_another_process_made_again(tmp_path, member):
    path = tmp_path / "store"
    with Crew(path) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        for name in ("t", "out"):
            ann.call(make_topic, name)
        ann.call(store_calls.append, "t", ["old"] * 9)
        ann.call(begin_with_offsets, member)
        bob.call(store_calls.delete_topic, "t")
        bob.call(make_topic, "t")
        bob.call(store_calls.append, "t", ["new"] * 9)
        if member:
            with pytest.raises(MemberError, match="UnknownTopicOrPartitionError"):
                ann.call(commit_with_offsets, member)
        else:
            ann.call(commit_with_offsets, member)
        assert bob.call(store_calls.values_of, "out") == ([] if member else ["made of it"])
        crew.all_leave()
    with eoslog.open(path) as store:
        assert store.groups().get("g", {}) == {}
