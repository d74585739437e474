"""`eoslog import-kafka`: what it prints, as text and as JSON, and how it fails."""

import pytest
from broker_directory import (
    OF_TOPIC,
    BrokerDirectory,
    batch,
    config_record,
    partition_record,
    topic_record,
)
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog


@pytest.fixture
def logs(tmp_path):
    return BrokerDirectory(tmp_path / "logs")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def fill(logs):
    logs.partition("a-0", batch([b"0"]) + batch([b"1"], 1)[:-1], end=0)
    logs.partition("__share_group_state-0")
    (logs.path / "other").mkdir()
    logs.metadata(
        topic_record("a"),
        partition_record("a", 0),
        partition_record("a", 1),
        topic_record("__share_group_state"),
        partition_record("__share_group_state", 0),
        config_record(OF_TOPIC, "a", "cleanup.policy", "compact,delete"),
        config_record(OF_TOPIC, "a", "retention.ms", "5"),
        config_record(OF_TOPIC, "a", "flush.ms", "6"),
        config_record(OF_TOPIC, "a", "retention.bytes", "x"),
    )
    logs.stop(clean=False)


def test_the_result_as_text(logs, path):
    fill(logs)
    answer = call("import-kafka", logs.path, path, "--allow-missing")
    torn = len(batch([b"1"], 1)) - 1
    assert (answer.status, answer.stderr) == (DONE, "")
    assert answer.stdout.splitlines() == [
        f"2 topics with 3 partitions, 0 groups, 0 transactional ids in {path}: 0.0 MB copied",
        f"not closed cleanly by the broker: {logs.path}",
        f"a-0: a torn batch of {torn} bytes at its end is left out",
        f"left out: {logs.path / 'other'}: not a partition's directory",
        "made empty: a-1",
        "a topic like others here: __share_group_state",
        "deletes old records: topic a: retention.ms=5",
        "kept, without effect: topic a: flush.ms=6",
        "kept, without effect: topic a: cleanup.policy=compact,delete",
        "not taken over: topic a: retention.bytes=x: retention.bytes must be an int, got 'x'",
    ]


def test_the_result_as_json(logs, path):
    fill(logs)
    answer = call("import-kafka", logs.path, path, "--allow-missing", "--json")
    assert answer.status == DONE
    found = answer.json
    assert (found["path"], found["node_id"], found["topics"]) == (str(path), 1, 2)
    assert found["unclean"] == [str(logs.path)]
    assert found["missing"] == ["a-1"]
    assert [one["partition"] for one in found["cut"]] == ["a-0"]
    assert found["left_out"] == [
        {"what": str(logs.path / "other"), "reason": "not a partition's directory"}
    ]
    assert found["not_applied"][0] == {
        "of": "topic a",
        "name": "flush.ms",
        "value": "6",
        "reason": "",
    }
    assert found["not_taken_over"][0]["reason"] == "retention.bytes must be an int, got 'x'"
    assert found["ended_transactions"] == found["other_groups"] == []


def test_settings_of_topics(logs, tmp_path, path):
    logs.partition("a-0")
    other = BrokerDirectory(tmp_path / "other")
    other.partition("b-0")
    settings = ("--config", "segment.ms=5", "--topic-config", "a", "segment.ms=6")
    more = ("--topic-config", "a", "retention.ms=7")
    answer = call("import-kafka", logs.stop(), other.stop(), path, *settings, *more, "--link")
    assert answer.status == DONE, answer
    with eoslog.open(path) as store:
        configs = {name: dict(topic.config) for name, topic in store.topics().items()}
    assert configs == {"a": {"segment.ms": 6, "retention.ms": 7}, "b": {"segment.ms": 5}}


def test_wrong_use(logs, path):
    logs.partition("a-0")
    logs.stop()
    assert call("import-kafka").status == WRONG_USE
    assert call("import-kafka", path).status == WRONG_USE
    for options in (
        ("--config", "segment.ms"),
        ("--config", "nonsense=1"),
        ("--config", "segment.ms=x"),
        ("--topic-config", "a", "segment.ms"),
        ("--topic-config", "a", "nonsense=1"),
    ):
        assert call("import-kafka", logs.path, path, *options).status == WRONG_USE, options
    unknown = ("--topic-config", "b", "segment.ms=1")
    assert_mistake(call("import-kafka", logs.path, path, *unknown), FAILED, "no users' topic 'b'")
    assert_mistake(call("import-kafka", path.with_name("no"), path), FAILED, "no such directory")
    assert not path.exists()
