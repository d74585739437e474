"""A partition loses its end, and with it a marker that was synced: what the coordinator decided
holds there too.
"""

import os
import re

import pytest
from coordinated_store import CoordinatedStore, batches_of

from eoslog.errors import InvalidTxnStateError
from eoslog.store.store import abandon, parts_of
from eoslog.transactions.recovery import TransactionRecovery

KEPT, LOST = "a-0", "b-1"


def state_of(at):
    return parts_of(at.store).files.state_log.partition_of("my-txn")


def compact(at):
    """Leave of each id the newest record alone."""
    state = state_of(at)
    state.roll()
    assert parts_of(at.store).files.state_log.compact(state, lambda _: state.log_end_offset)


@pytest.fixture(params=["commit", "abort"])
def decided(request):
    return request.param == "commit"


def lose(at, store_path, batch_count=1):
    """Close it cleanly, and cut the last batches off; the page and the checkpoint say nothing of
    it.
    """
    batches = batches_of(at.partition(LOST))
    at.store.close()
    left = sum(len(data) for _, data in batches[:-batch_count])
    os.truncate(store_path / LOST / f"{0:020d}.log", left)


def transaction(at, commit):
    """A transaction in both partitions; what the producer goes on with."""
    return at.end(at.begun(KEPT, LOST), commit)


def assert_ended(at, commit, expected="had been synced"):
    for place in (KEPT, LOST):
        partition = at.partition(place)
        assert partition.open_transactions() == []
        assert partition.last_stable_offset == partition.log_end_offset
        assert at.committed(place) == ([b"x"] if commit else [])
        assert [kind for _, _, kind in at.markers(place)] == ["COMMIT" if commit else "ABORT"]
    found = [str(one["reason"]) for one in at.store.verify()]
    assert [one for one in found if not re.search(expected, one)] == []


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("durability", ["process", "commit"])
def test_the_opening_that_notes_it_writes_the_marker_again(
    open_store, store_path, decided, durability, is_compacted
):
    at = CoordinatedStore(open_store(durability))
    transaction(at, decided)
    if is_compacted:
        compact(at)
    lose(at, store_path)
    at = CoordinatedStore(open_store(durability))
    assert_ended(at, decided)


@pytest.mark.parametrize("stop", ["clean", "unclean"])
def test_an_opener_that_dies_before_that_leaves_it_to_the_next(
    open_store, store_path, decided, stop, monkeypatch
):
    at = CoordinatedStore(open_store("commit"))
    transaction(at, decided)
    lose(at, store_path)
    if stop == "unclean":
        (store_path / ".kafka_cleanshutdown").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(TransactionRecovery, "resolve", lambda *_: None)
        at = CoordinatedStore(open_store("commit"))
        assert at.partition(LOST).open_transactions()
        abandon(at.store)
    at = CoordinatedStore(open_store("commit"))
    assert_ended(at, decided)


def test_the_oldest_of_several_is_ended_as_it_was_decided(open_store, store_path):
    """Its batches are followed by the id's next transactions, all of which are lost here."""
    at = CoordinatedStore(open_store("commit"))
    following = transaction(at, True)
    for commit in (False, True):
        at.write(following, LOST, value=b"later")
        following = at.end(following, commit)
    lose(at, store_path, batch_count=5)
    at = CoordinatedStore(open_store("commit"))
    assert_ended(at, True, "synced|is missing here")


def test_what_the_coordinator_forgot_is_the_operators(open_store, store_path, caplog):
    at = CoordinatedStore(open_store("commit"))
    following = transaction(at, True)
    at.write(following, KEPT, value=b"later")
    at.end(following)
    compact(at)
    lose(at, store_path)
    at = CoordinatedStore(open_store("commit"))
    (waiting,) = at.partition(LOST).open_transactions()
    assert "until an operator ends it" in caplog.text
    at.store.abort_transaction(topic="b", partition=1, start_offset=waiting.first_offset)
    assert [kind for _, _, kind in at.markers(LOST)] == ["ABORT"]


def test_an_operator_ends_it_as_it_was_decided(open_store, store_path, decided, monkeypatch):
    """An older version noted the loss, and left the transaction open."""
    at = CoordinatedStore(open_store("commit"))
    transaction(at, decided)
    lose(at, store_path)
    with monkeypatch.context() as patched:
        patched.setattr(TransactionRecovery, "resolve", lambda *_: None)
        at = CoordinatedStore(open_store("commit"))
        at.partition(LOST)
        at.store.close()
    at = CoordinatedStore(open_store("commit"))
    (hanging,) = at.store.find_hanging_transactions(max_transaction_timeout_ms=0)
    arguments = {"topic": "b", "partition": 1, "start_offset": hanging.start_offset}
    at.store.abort_transaction(**arguments)
    assert_ended(at, decided)
    with pytest.raises(InvalidTxnStateError):
        at.store.abort_transaction(**arguments)
