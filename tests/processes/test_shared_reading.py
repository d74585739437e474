"""Readers in one process, writers in others: never a torn state, never late, nothing undecided."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from harness.crew import QUIET, TIMEOUT_S, Crew, MemberError
from harness.waiting import eventually
from processes import store_calls
from processes.lanes import TOPIC, Lanes, make_store, records_of, value_of, write_lane
from reference_model import batch_codec

import eoslog
from eoslog import TopicPartition
from eoslog.errors import OffsetOutOfRangeError
from eoslog.store.store import engine_of

# Most waits end so soon, also on a machine whose processors are all taken: who was not woken looks
# again after a second. Benches say how fast it is.
SOON_S = 0.3


def read_raw(hand, topic, stop):
    """Fetch whole batches from the end on, while others write: each is whole, none left out.

    Until the file `stop` is there, and all was read.
    """
    partition = hand.store.partition(topic, 0)
    offset, batches, ends = 0, 0, []
    stopping = False
    while not stopping or offset < ends[-1]:
        stopping = Path(stop).exists()
        end = partition.log_end_offset
        ends.append(end)
        data = partition.read(offset, 1 << 16)
        for batch in batch_codec.whole_batches(data):
            assert batch.base_offset == offset, (batch.base_offset, offset)
            batch_codec.records_of(batch.data)  # It checks the checksum.
            offset = batch.last_offset + 1
            batches += 1
        assert offset >= end or data, f"nothing at {offset}, though the log ends at {end}"
    assert ends == sorted(ends)
    return batches


def read_lanes(hand, topic, stop, isolation_level="read_committed"):
    """Read from the beginning and go on at the tail; one line for what each poll gave.

    Until the file `stop` is there, and all was read.
    """
    with hand.store.consumer(isolation_level=isolation_level) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        stopping, records = False, []
        while records or not stopping:
            stopping = Path(stop).exists()
            records = consumer.poll(timeout=0.05)
            if records:
                found = [(one.offset, (one.value or b"").decode()[:40]) for one in records]
                hand.say("saw", found)


def test_readers_at_the_tail_of_several_writers(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1, segment_bytes=1 << 15)
    with Crew(path) as crew:
        writers = [crew.join("writer") for _ in range(2)]
        reader, raw = crew.join("reader"), crew.join("raw")
        stop = tmp_path / "stop"
        reader.begin(read_lanes, TOPIC, str(stop))
        raw.begin(read_raw, TOPIC, str(stop))
        for number, member in enumerate(writers):
            member.begin(write_lane, f"lane-{number}", 0, named=number == 0, seconds=0.7)
        counts = [member.answer() for member in writers]
        stop.touch()
        reader.answer()
        assert raw.answer() > 0
        crew.all_leave()
        known = Lanes()
        for member in writers:
            known.take(member.all_said)
        seen = [one for said in reader.all_said if said.word == "saw" for one in said.rest[0]]
    with eoslog.open(path) as store:
        found = records_of(store)
        known.check(found)
    assert len(found[0]) == sum(counts)
    assert [offset for offset, _ in seen] == list(found[0]), "a reader left out, or repeated"
    assert [text for _, text in seen] == [one.decode()[:40] for one in found[0].values()]


def test_what_is_acknowledged_is_seen_at_once_by_everybody(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        writer, readers = crew.join("writer"), [crew.join("reader") for _ in range(2)]
        for reader in readers:
            reader.call(store_calls.keep_consumer, TOPIC)
        for number in range(100):
            writer.call(store_calls.append, TOPIC, [str(number)])
            for reader in readers:
                assert reader.call(store_calls.poll) == [str(number)]
        crew.all_leave()


def test_a_waiting_poll_is_woken_by_another_process(tmp_path):
    path = tmp_path / "store"
    make_store(path, 2)
    with Crew(path) as crew:
        writer, reader = crew.join("writer"), crew.join("reader")
        reader.call(store_calls.keep_consumer, TOPIC, 2)
        late_ns = []
        for number in range(20):
            reader.begin(store_calls.poll_once, 100.0)
            time.sleep(0.02 if number % 2 else 0.0)
            writer.call(store_calls.append, TOPIC, ["x"], partition=number % 2)
            said = writer.all_said[-1]
            count, moment_ns = reader.answer()
            assert count == 1
            late_ns.append(moment_ns - said.moment_ns)
        assert sorted(late_ns)[len(late_ns) // 2] < SOON_S * 1e9, late_ns
        crew.all_leave()


def wait_in_vain(hand, seconds):
    """Seconds of processor time that it takes to wait for records that do not come."""
    before_s = time.process_time()
    assert hand.kept["consumer"].poll(timeout=seconds) == []
    return time.process_time() - before_s


def test_who_waits_sleeps(tmp_path):
    """No loop looks for records, also while another process writes to what is not waited for."""
    path = tmp_path / "store"
    make_store(path, 2)
    with Crew(path, config=QUIET) as crew:
        writer, reader = crew.join("writer"), crew.join("reader")
        reader.call(store_calls.keep_consumer, TOPIC, 1)
        assert reader.call(wait_in_vain, 1.5) < 0.15
        writer.begin(write_lane, "lane", 1, seconds=2.0, pause_s=0.01)
        assert reader.call(wait_in_vain, 1.5) < 0.3
        writer.answer()
        crew.all_leave()


def test_a_waiting_poll_is_woken_by_a_commit_elsewhere(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        writer, reader = crew.join("writer"), crew.join("reader")
        writer.call(store_calls.init, "t")
        reader.call(store_calls.keep_consumer, TOPIC)
        late_ns = []
        for _ in range(9):
            writer.call(store_calls.begin, "t")
            writer.call(store_calls.send, "t", TOPIC, {"0": ["x"]})
            reader.begin(store_calls.poll_once, 100.0)
            time.sleep(0.05)
            assert not [one for one in reader.listen() if one.word == "did"], "undecided, and seen"
            writer.call(store_calls.commit, "t")
            committed_ns = writer.all_said[-1].moment_ns
            count, moment_ns = reader.answer()
            assert count == 1
            late_ns.append(moment_ns - committed_ns)
        assert sorted(late_ns)[len(late_ns) // 2] < SOON_S * 1e9, late_ns
        crew.all_leave()


def test_undecided_and_aborted_records_are_seen_by_no_committed_reader(tmp_path):
    path = tmp_path / "store"
    make_store(path, 2)
    with Crew(path) as crew:
        writer, reader = crew.join("writer"), crew.join("reader")
        writer.call(store_calls.init, "t")
        writer.call(store_calls.begin, "t")
        writer.call(store_calls.send, "t", TOPIC, {"0": ["a", "b"], "1": ["c"]})
        writer.call(store_calls.append, TOPIC, ["plain"])
        assert reader.call(store_calls.values_of, TOPIC) == []
        assert reader.call(store_calls.values_of, TOPIC, 0, "read_uncommitted") == [
            "a",
            "b",
            "plain",
        ]
        assert reader.call(store_calls.offsets_of, TOPIC)["last_stable_offset"] == 0
        writer.call(store_calls.abort, "t")
        assert reader.call(store_calls.values_of, TOPIC) == ["plain"]
        assert reader.call(store_calls.values_of, TOPIC, 1) == []
        late = crew.join("late")
        assert late.call(store_calls.values_of, TOPIC) == ["plain"]
        writer.call(store_calls.commit_once, "t", TOPIC, {"0": ["d"], "1": ["e"]})
        for member in (reader, late, writer):
            assert member.call(store_calls.values_of, TOPIC) == ["plain", "d"]
            assert member.call(store_calls.values_of, TOPIC, 1) == ["e"]
        crew.all_leave()


def write_transactions(hand, transactional_id, partitions, seconds, seed):
    """Each transaction has one record in each of some partitions: its number and who was in it."""
    noise = random.Random(seed)
    with hand.store.producer(transactional_id=transactional_id) as producer:
        producer.init_transactions()
        end_s, number = time.monotonic() + seconds, 0
        while not number or time.monotonic() < end_s:
            chosen = sorted(noise.sample(range(partitions), noise.randint(2, partitions)))
            aborted = noise.random() < 0.3
            producer.begin_transaction()
            for partition in chosen:
                text = f"{transactional_id}:{number}:{len(chosen)}:{'aborted' if aborted else ''}"
                producer.send(TOPIC, value=text.encode(), partition=partition)
                if noise.random() < 0.3:
                    producer.flush()
            if aborted:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
            number += 1
    return number


def take_snapshots(hand, seconds):
    """Offsets that cut no transaction: read up to them, each transaction is whole or not there."""
    end_s, count = time.monotonic() + seconds, 0
    while not count or time.monotonic() < end_s:
        offsets = hand.store.snapshot([TOPIC])
        seen: dict[str, int] = {}
        wanted: dict[str, int] = {}
        with hand.store.consumer() as consumer:
            for where, upper_bound in offsets.items():
                consumer.assign([where])
                while records := consumer.poll(timeout=0, max_records=5000):
                    for record in records:
                        if record.offset < upper_bound:
                            name, number, size, aborted = (record.value or b"").decode().split(":")
                            assert not aborted, record
                            key = f"{name}:{number}"
                            seen[key] = seen.get(key, 0) + 1
                            wanted[key] = int(size)
        assert seen == wanted, {key: (seen[key], wanted[key]) for key in seen if seen != wanted}
        count += 1
    return count


def test_a_snapshot_cuts_no_transaction_of_other_processes(tmp_path):
    path = tmp_path / "store"
    make_store(path, 3)
    with Crew(path) as crew:
        writers = [crew.join("writer") for _ in range(2)]
        reader = crew.join("reader")
        for number, member in enumerate(writers):
            member.begin(write_transactions, f"t-{number}", 3, 1.0, number)
        reader.begin(take_snapshots, 2.0)
        assert min(member.answer() for member in writers) > 0
        assert reader.answer() > 0
        crew.all_leave()


def test_offsets_of_a_group_are_seen_by_other_processes(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    where = str(TopicPartition(TOPIC, 0))
    with Crew(path) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        ann.call(store_calls.append, TOPIC, [str(number) for number in range(10)])
        ann.call(store_calls.keep_consumer, TOPIC, 1, "g", config={"max.poll.records": 4})
        assert ann.call(store_calls.poll) == ["0", "1", "2", "3"]
        ann.call(store_calls.commit_positions)
        assert bob.call(store_calls.group_offsets, "g") == {where: 4}
        bob.call(store_calls.keep_consumer, TOPIC, 1, "g", config={"max.poll.records": 3})
        assert bob.call(store_calls.poll) == ["4", "5", "6"]
        bob.call(store_calls.commit_positions)
        assert ann.call(store_calls.group_offsets, "g") == {where: 7}
        bob.call(store_calls.init, "t")
        bob.call(store_calls.begin, "t")
        bob.call(store_calls.send_offset, "t", "g", TOPIC, 0, 9)
        assert ann.call(store_calls.group_offsets, "g") == {where: 7}
        late = crew.join("late")
        late.call(store_calls.keep_consumer, TOPIC, 1, "g")
        assert late.call(store_calls.poll) == [], "the group's offset is not decided yet"
        bob.call(store_calls.commit, "t")
        assert late.call(store_calls.poll) == ["9"]
        assert ann.call(store_calls.group_offsets, "g") == {where: 9}
        crew.all_leave()


def read_what_retention_leaves(hand, stop):
    """Read from the oldest record on, again and again, slowly; retention deletes meanwhile.

    Until the file `stop` is there.
    """
    starts, passed = [], 0
    partition = engine_of(hand.store).partition(TOPIC, 0)
    stopping = False
    while not stopping:
        stopping = Path(stop).exists()
        starts.append(partition.log_start_offset)
        if len(starts) == 1:
            hand.say("begun")
        offset, last = starts[-1], -1
        try:
            for _ in range(20):
                records, offset = partition.fetch_records(offset, 50, 1 << 16)
                for record in records:
                    lane, position, _ = (record.value or b"").decode().split(":", 2)
                    assert record.value == value_of(lane, int(position)), record.offset
                    assert last < record.offset, (last, record.offset)
                    last = record.offset
                    assert int(position) == record.offset
                time.sleep(0.001)
        except OffsetOutOfRangeError:
            passed += 1
    assert starts == sorted(starts)
    return [starts[0], starts[-1], passed]


def test_retention_by_one_process_while_another_reads(tmp_path):
    """Whichever process deletes; a reader gets whole records or an error by name."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, config={"segment.bytes": 1 << 14, "retention.bytes": 4 << 14})
    with Crew(path) as crew:
        writer, reader = crew.join("writer"), crew.join("reader")
        stop = tmp_path / "stop"
        reader.begin(read_what_retention_leaves, str(stop))
        reader.hear("begun")
        deadline_s = time.monotonic() + TIMEOUT_S
        while writer.call(store_calls.offsets_of, TOPIC)["log_start_offset"] == 0:
            assert time.monotonic() < deadline_s, "retention does nothing"
            writer.begin(write_lane, "lane", 0, named=True, seconds=1.0, pause_s=0.0002)
            writer.answer()
        stop.touch()
        first, last, _ = reader.answer()
        assert first < last, "nothing was deleted"
        reader.leave()
        start = writer.call(store_calls.offsets_of, TOPIC)["log_start_offset"]
        late = crew.join("late")
        assert late.call(store_calls.offsets_of, TOPIC)["log_start_offset"] >= start
        crew.all_leave()
    with eoslog.open(path) as store:
        assert store.verify() == []


def test_a_position_that_retention_passed_is_an_error_by_name(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, config={"segment.bytes": 1 << 14, "retention.bytes": 1 << 14})
    with Crew(path) as crew:
        writer, reader = crew.join("writer"), crew.join("reader")
        writer.call(store_calls.append, TOPIC, ["first"])
        reader.call(store_calls.keep_consumer, TOPIC, 1, None, auto_offset_reset="none")
        with pytest.raises(MemberError, match="NoOffsetForPartitionError"):
            reader.call(store_calls.poll)
        reader.call(store_calls.keep_consumer, TOPIC)
        assert reader.call(store_calls.poll) == ["first"]
        for number in range(40):
            writer.call(store_calls.append, TOPIC, [f"{number}" + "x" * 4000])
        eventually(
            lambda: reader.call(store_calls.offsets_of, TOPIC)["log_start_offset"] >= 2,
            "retention did nothing",
        )
        # It goes on at the oldest record that there is.
        oldest = reader.call(store_calls.offsets_of, TOPIC)["log_start_offset"]
        assert int(reader.call(store_calls.poll)[0].split("x")[0]) >= oldest - 1
        crew.all_leave()


def append_and_sync(hand, seconds):
    """Append, roll, and sync, while another process deletes what was sealed."""
    partition = engine_of(hand.store).partition(TOPIC, 0)
    end_s, count = time.monotonic() + seconds, 0
    with hand.store.producer() as producer:
        while count < 2 or time.monotonic() < end_s:
            for _ in range(3):
                producer.append(TOPIC, partition=0, values=[b"x" * 300])
            if count % 2:
                partition.roll()
                producer.append(TOPIC, partition=0, values=[b"y" * 300])
            partition.flush()
            count += 1
    return count


def delete_all_sealed(hand, seconds):
    partition = engine_of(hand.store).partition(TOPIC, 0)
    end_s, count = time.monotonic() + seconds, 0
    while not count or time.monotonic() < end_s:
        up_to_offset = partition.log_end_offset
        # As retention does: what the deleted batches say of producers is to be found in LMDB.
        partition.flush()
        partition.producer_state.save_copies()
        count += partition.delete_segments(up_to_offset)
    return count


def test_segments_deleted_under_a_sync_of_another_process(tmp_path):
    """What was deleted needs no sync: no process takes its absence for a failed disk."""
    path = tmp_path / "store"
    make_store(path, 1, segment_bytes=1 << 14)
    with Crew(path, durability="commit") as crew:
        writers, deleter = [crew.join("writer") for _ in range(2)], crew.join("deleter")
        for member in writers:
            member.begin(append_and_sync, 1.5)
        deleter.begin(delete_all_sealed, 1.5)
        assert min(member.answer() for member in writers) > 0
        assert deleter.answer() > 0
        crew.all_leave()
    with eoslog.open(path) as store:
        assert store.verify() == []
