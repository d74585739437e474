"""`commit` of what `stage` handed out, without Spark: offsets of groups by the same decision."""

import pytest
from read_back import values_in

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StagedRunFencedError, UnknownTopicOrPartitionError
from eoslog.spark import commit, stage

READ = TopicPartition("orders", 0)


def staged(path, run_id="run"):
    """The messages of one task, which landed two rows."""
    names = {"topic": "orders", "partitions": 4, "app_id": "job", "run_id": run_id}
    return list(stage([b"one", b"two"], store=path, attempt="0", **names))


def test_offsets_are_committed_by_the_same_decision(store_path):
    offsets = {"readers": {READ: 0}}
    done = commit(staged(store_path), store=store_path, app_id="job", version=0, offsets=offsets)
    assert done.committed
    with eoslog.open(store_path) as store:
        assert store.groups()["readers"][READ].offset == 0
    assert sorted(values_in(store_path)) == [b"one", b"two"]


def test_offsets_of_a_version_that_is_in_are_left_out(store_path):
    commit(staged(store_path), store=store_path, app_id="job", version=0)
    offsets = {"readers": {READ: 1}}
    again = staged(store_path, "again")
    assert not commit(again, store=store_path, app_id="job", version=0, offsets=offsets).committed
    with eoslog.open(store_path) as store:
        assert "readers" not in store.groups()


def test_offsets_that_are_wrong_decide_nothing(store_path):
    offsets = {"readers": {TopicPartition("nowhere", 0): 0}}
    with pytest.raises(UnknownTopicOrPartitionError):
        commit(staged(store_path), store=store_path, app_id="job", version=0, offsets=offsets)
    assert values_in(store_path) == []


def test_a_version_without_messages_needs_its_run(store_path):
    """Else an older run could take it: nothing of a newer one's would be in."""
    with eoslog.open(store_path) as store:
        older, newer = store.begin_run("job"), store.begin_run("job")
    with pytest.raises(ValueError, match="version 0 of application 'job' has no messages"):
        commit([], store=store_path, app_id="job", version=0)
    with pytest.raises(StagedRunFencedError):
        commit([], store=store_path, app_id="job", version=0, run_id=older)
    assert commit([], store=store_path, app_id="job", version=0, run_id=newer).committed


@pytest.mark.parametrize(
    ("messages", "error", "says"),
    [
        (None, TypeError, "messages must be a list of what stage.. yielded, got NoneType"),
        ("abc", TypeError, "got str"),
        (b"abc", TypeError, "got bytes"),
        ({"app_id": "job"}, TypeError, "got dict"),
        (7, TypeError, "got int"),
        (["abc"], ValueError, "'abc' is no message of stage"),
        ([[1, 2]], TypeError, "expected a message of stage.., got list"),
        ([None], TypeError, "got NoneType"),
        (["[1]"], TypeError, "got list"),
    ],
)
def test_what_are_no_messages(store_path, messages, error, says):
    with pytest.raises(error, match=says):
        commit(messages, store=store_path, app_id="job", version=0, run_id="run")
    with eoslog.open(store_path) as store:
        assert store.application("job") is None
