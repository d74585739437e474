"""Commits whose data and decision go to the disk together: what a recovery makes of halves.

The decision names where each log has to end. A power cut is simulated by cutting the logs, without
the journal: what of it was durable is what a test leaves.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import shutil

import pytest
from commit_journals import LARGE, journal_of, with_journal
from coordinated_store import ID, CoordinatedStore
from harness.fork import in_child
from partition_files import all_records
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.transaction_entry import decode_transaction_value
from eoslog.errors import ConcurrentTransactionsError, StoreError, StoreFailedError, StoreFullError
from eoslog.fs.identity_files import id_bytes
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.store.store import abandon, engine_of, parts_of
from eoslog.transactions.entries import TransactionEntries
from eoslog.transactions.recovery import TransactionRecovery
from eoslog.transactions.state_key import state_partition_of, transaction_key

STATE = TopicPartition("__transaction_state", state_partition_of(ID))
A, B = TopicPartition("a", 0), TopicPartition("b", 1)


def opened(path, **settings):
    store = eoslog.open(path, create=True, config=QUIET | settings)
    return CoordinatedStore(with_journal(store) if settings else store)


def names_of(store):
    """States of the id's records, and what the decisions name."""
    states = []
    for record in all_records(parts_of(store).files.state_log.partition_of(ID)):
        if record.value is not None and record.key[:2] == b"\0\0":
            fields = decode_transaction_value(record.value)
            states.append((fields["state"], fields["ends"]))
    return states


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def decided(path):
    """A store that died right after a transaction over two partitions; the logs' ends by then.

    Before it, each log and the state log have records whose files were synced.
    """
    at = opened(path, **LARGE)
    begun = at.end(at.begun("a-0", "b-1"))
    at.write(begun, "a-0", "b-1", value=b"y")
    before = sizes_of(at)
    at.end(begun)
    kept = names_of(at.store)
    abandon(at.store)
    shutil.rmtree(path / "state" / "journal")
    return before, kept


def sizes_of(at):
    found = {}
    for where in (A, B, STATE):
        partition = (
            parts_of(at.store).files.state_log.partition_of(ID)
            if where == STATE
            else engine_of(at.store).partition(*where)
        )
        found[where] = partition.size_bytes
    return found


def batch_ends(path, where):
    """Where the batches of a log end."""
    data = (path / str(where) / f"{0:020d}.log").read_bytes()
    ends, at = [0], 0
    while at + 61 <= len(data) and data[at + 16] == 2:
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
        ends.append(at)
    return ends


def cut(path, where, size_bytes):
    """As the log was before, on the disk; what its page says came later."""
    (path / "state" / "control" / str(where)).unlink(missing_ok=True)
    file = path / str(where) / f"{0:020d}.log"
    data = file.read_bytes()
    file.write_bytes(data[:size_bytes] + bytes(len(data) - size_bytes))


def cut_after_the_decision(path, before):
    """The state log up to the PrepareCommit; the data as it was appended, without markers."""
    ends = batch_ends(path, STATE)
    cut(path, STATE, ends[ends.index(before[STATE]) + 1])
    for where in (A, B):
        cut(path, where, before[where])


def cut_short(path, before):
    """The same, but one log lost the last batch of the transaction."""
    cut_after_the_decision(path, before)
    cut(path, B, batch_ends(path, B)[-2])


def assert_it_was_aborted(at):
    """Only the transaction before it counts, in both logs; the store is closed."""
    for place in ("a-0", "b-1"):
        assert at.committed(place) == [b"x"]
    assert at.store.verify() == []
    at.store.close()


@contextlib.contextmanager
def unopenable(where):
    """In a block: no process opens that partition for a transaction."""
    find = OpenedPartitions.find_for_transaction

    def fails(partitions, asked):
        if asked == where:
            raise StoreFailedError("the disk")
        return find(partitions, asked)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OpenedPartitions, "find_for_transaction", fails)
        yield


def test_a_commit_is_one_record_and_names_where_its_logs_end(path):
    at = opened(path, **LARGE)
    begun = at.end(at.begun("a-0", "b-1"))
    at.write(begun, "b-1", "a-0")
    records = journal_of(at.store).journal.counts["records"]
    at.end(begun)
    assert journal_of(at.store).journal.counts["records"] == records + 1
    topics = at.store.topics()
    named = [(id_bytes(topics[topic].topic_id), 3) for topic in ("a", "b")]
    assert names_of(at.store)[-2:] == [("PrepareCommit", named), ("CompleteCommit", None)]
    for where in (A, B):
        assert engine_of(at.store).partition(*where).log.durable_offset >= 3
    begun = at.begun("a-0")
    at.end(begun, commit=False)
    assert names_of(at.store)[-2:] == [("PrepareAbort", None), ("CompleteAbort", None)]
    at.store.close()


def test_without_a_journal_a_commit_names_nothing(path):
    at = opened(path)
    at.end(at.begun("a-0"))
    assert names_of(at.store)[-2:] == [("PrepareCommit", None), ("CompleteCommit", None)]
    at.store.close()


def test_a_decision_with_all_its_data_is_carried_out(path, decided):
    before, kept = decided
    cut_after_the_decision(path, before)
    at = opened(path)
    for place in ("a-0", "b-1"):
        assert at.committed(place) == [b"x", b"y"]
    assert names_of(at.store) == kept
    assert at.store.verify() == []
    at.store.close()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("lost", [(A,), (B,), (A, B)])
def test_a_decision_without_all_its_data_is_an_abort(path, decided, caplog, lost, again):
    before, kept = decided
    cut_after_the_decision(path, before)
    for where in lost:
        ends = batch_ends(path, where)
        cut(path, where, ends[ends.index(before[where]) - 1])
    if again:  # The process dies when the abort is written, and not carried out.
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(TransactionRecovery, "_roll_forward", lambda *_: None)
            patched.setattr(TransactionRecovery, "_open_decided", lambda *_: None)
            patched.setattr(TransactionRecovery, "resolve", lambda *_: None)
            abandon(opened(path).store)
        assert "its data did not all reach the disk" in caplog.text
        caplog.clear()
    with caplog.at_level(logging.WARNING):
        at = opened(path)
    assert ("its data did not all reach the disk" in caplog.text) is not again
    for place in ("a-0", "b-1"):
        assert at.committed(place) == [b"x"]
    assert names_of(at.store) == [
        *kept[:-1],
        ("PrepareAbort", None),
        ("CompleteAbort", None),
    ]
    assert at.store.verify() == []
    # The id goes on, and the next opening finds nothing to be done.
    at.end(at.begun("a-0", "b-1"))
    at.store.close()
    at = opened(path)
    for place in ("a-0", "b-1"):
        assert at.committed(place) == [b"x", b"x"]
    assert at.store.verify() == []
    at.store.close()


def test_the_abort_is_synced_whatever_the_durability(path, decided):
    """Else what is appended next would pass for the lost data, with the next recovery."""
    before, kept = decided
    cut_short(path, before)
    at = CoordinatedStore(eoslog.open(path, durability="process", config=QUIET))
    assert names_of(at.store)[-2:] == [("PrepareAbort", None), ("CompleteAbort", None)]
    state = parts_of(at.store).files.state_log.partition_of(ID)
    assert state.recovery_point == state.log_end_offset - 1
    assert len(names_of(at.store)) == len(kept) + 1
    at.store.close()


def test_what_was_revoked_stays_so_after_another_power_cut(path, decided):
    """Both decisions are read again, and the markers are written again, as aborts."""
    before, _ = decided
    cut_short(path, before)
    at = opened(path)
    abandon(at.store)
    for where in (A, B):  # The markers that nobody had synced.
        cut(path, where, min(before[where], batch_ends(path, where)[-1]))
    at = opened(path)
    assert_it_was_aborted(at)


def test_a_topic_that_is_gone_or_another_counts_as_reached(path, decided):
    before, _ = decided
    cut_after_the_decision(path, before)
    state = path / str(STATE) / f"{0:020d}.log"
    kept = state.read_bytes()
    with eoslog.open(path, config=QUIET) as store:
        store.delete_topic("b")
        store.create_topic("b", partitions=2)
    # As it was when the decision waited; the topic is another one by now.
    (path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (path / "state" / "unrecovered.json").unlink(missing_ok=True)
    shutil.rmtree(path / "state" / "lmdb")
    cut(path, STATE, 0)
    state.write_bytes(kept)
    cut(path, A, before[A])
    at = opened(path)
    assert at.committed("a-0") == [b"x", b"y"]
    assert at.committed("b-1") == []
    at.store.close()


def test_a_log_that_cannot_be_opened_waits_for_the_next_opening(path, decided):
    before, kept = decided
    cut_short(path, before)
    with unopenable(B):
        at = opened(path)
    # The disk works again: but what is appended now would look like the data that was lost.
    with pytest.raises(StoreError, match="judge a commit"):
        at.store.partition(*B)
    assert at.committed("a-0") == [b"x"]
    assert names_of(at.store) == kept[:-1]
    with pytest.raises(ConcurrentTransactionsError, match="judge a commit"):
        at.init()
    at.store.close()
    at = opened(path)
    assert names_of(at.store)[-1] == ("CompleteAbort", None)
    assert_it_was_aborted(at)


@pytest.mark.parametrize("has", list(itertools.product([False, True], repeat=3)))
def test_any_part_of_a_commit_that_the_disk_may_have(path, decided, has):
    """Of the data in either partition, and of the decision, each is there or not."""
    before, _ = decided
    cut_after_the_decision(path, before)
    for where, is_there in zip((A, B, STATE), has, strict=True):
        if not is_there:
            cut(path, where, batch_ends(path, where)[-2])
    at = opened(path)
    expected = [b"x", b"y"] if all(has) else [b"x"]
    for place in ("a-0", "b-1"):
        assert at.committed(place) == expected
    at.end(at.begun("a-0", "b-1"))
    assert at.store.verify() == []
    at.store.close()


def test_who_joins_opens_what_a_live_commit_names(path):
    """A commit is under way; its log was not opened when the session began, and was since."""
    abandon(opened(path).store)
    at = opened(path)
    engine_of(at.store).partition("a", 1).append_columns([b"x"])
    topic_id = id_bytes(at.store.topics()["a"].topic_id)
    at.record(
        state="PrepareCommit",
        producer_epoch=1,
        last_producer_epoch=0,
        partitions=[("a", 1)],
        ends=[(topic_id, 1)],
    )

    def join():
        with eoslog.open(path, config=QUIET) as joined:
            assert TopicPartition("a", 1) in parts_of(joined).files.session.unrecovered
            return joined.partition("a", 1).log_end_offset

    assert in_child(join) >= 1
    at.store.close()


def test_no_durability_has_markers_before_all_that_is_named_is_there(path, decided):
    """Else the next opening makes an abort of what one partition shows as committed."""
    before, kept = decided
    cut_short(path, before)
    with unopenable(B):
        at = CoordinatedStore(eoslog.open(path, durability="process", config=QUIET))
    assert at.committed("a-0") == [b"x"]
    assert names_of(at.store) == kept[:-1]
    at.store.close()
    at = CoordinatedStore(eoslog.open(path, durability="process", config=QUIET))
    assert_it_was_aborted(at)


def test_a_decision_that_is_not_taken_up_waits_for_the_next_opening(path, decided):
    """As where a log cannot be opened: nothing may come behind the data, which may be short."""
    before, kept = decided
    cut_short(path, before)

    def has_no_room(entries):
        raise StoreFullError("no room to note the durability")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TransactionEntries, "_note_durability", has_no_room)
        at = CoordinatedStore(eoslog.open(path, durability="process", config=QUIET))
    for where in (A, B):
        with pytest.raises(StoreError, match="judge a commit"):
            at.store.partition(*where)
    parts_of(at.store).files.transaction_recovery.retry()
    assert names_of(at.store) == kept[:-1]
    at.store.close()
    at = opened(path)
    assert_it_was_aborted(at)


def test_who_joins_opens_no_log_that_could_not_be_judged(path, decided):
    before, kept = decided
    cut_short(path, before)
    with unopenable(B):
        at = opened(path)

    def join():
        with eoslog.open(path, config=QUIET) as joined:
            with pytest.raises(StoreError, match="judge a commit"):
                joined.partition(*B)
            return 7

    assert in_child(join) == 7
    assert names_of(at.store) == kept[:-1]
    at.store.close()


@pytest.mark.parametrize("durability", ["process", "commit"])
def test_a_decision_that_names_more_than_there_is_waits(path, durability):
    """No judging saw it: the data is missing, for whatever reason."""
    at = CoordinatedStore(eoslog.open(path, create=True, durability=durability, config=QUIET))
    engine_of(at.store).partition("a", 0).append_columns([b"x"])
    topic_id = id_bytes(at.store.topics()["a"].topic_id)
    at.record(
        state="PrepareCommit",
        producer_epoch=1,
        last_producer_epoch=0,
        partitions=[("a", 0)],
        ends=[(topic_id, 2)],
    )
    with pytest.raises(ConcurrentTransactionsError, match="ends below what a decision names"):
        at.init()
    assert at.markers("a-0") == []
    at.store.close()


def test_a_copy_of_a_decision_waits_as_it_does(path, decided):
    """The compaction copies what waits for long: the older record decides nothing either."""
    before, kept = decided
    cut_short(path, before)
    with unopenable(B):
        at = opened(path)
        state = parts_of(at.store).files.state_log.partition_of(ID)
        newest = [one for one in all_records(state) if one.key == transaction_key(ID)][-1]
        state.append_columns([newest.value], [newest.key])
        abandon(at.store)
        at = opened(path)
    assert at.committed("a-0") == [b"x"]
    assert names_of(at.store) == [*kept[:-1], kept[-2]]
    at.store.close()
    at = opened(path)
    assert_it_was_aborted(at)
