"""A directory of an internal topic is gone: `verify` says so as long as anything tells of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED, call

import eoslog
from eoslog import TopicPartition
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.errors import StoreFailedError
from eoslog.fs.checkpoint_file import RECOVERY_POINT
from eoslog.storage import opened_partitions

T0 = TopicPartition("t", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("t")
        with store.producer(transactional_id="id") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", value=b"v", partition=0)
        with store.consumer("readers") as consumer:
            consumer.commit({T0: 1})
    return tmp_path / "store"


def lose(path: Path, topic: str) -> Path:
    """Remove the directory of one partition of the topic that has records."""
    found = next(
        one
        for one in sorted(path.glob(f"{topic}-*"))
        if any(log.stat().st_size for log in logs(one))
    )
    shutil.rmtree(found)
    return found


def logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def test_the_name_of_a_new_directory_is_synced_though_its_first_sync_failed(tmp_path, monkeypatch):
    synced = []

    def sync(path: Path) -> None:
        synced.append(path)
        if len(synced) == 1:
            raise StoreFailedError("no")

    with eoslog.open(tmp_path, create=True) as store, store.consumer("readers") as consumer:
        store.create_topic("t")
        monkeypatch.setattr(opened_partitions, "sync_directory", sync)
        with pytest.raises(StoreFailedError):
            consumer.commit({T0: 1})
        consumer.commit({T0: 1})
        assert synced == [tmp_path, tmp_path]
        consumer.commit({T0: 2})
        assert synced == [tmp_path, tmp_path]


@pytest.mark.parametrize("topic", [CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC])
@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_directory_is_named(path, topic, clean):
    assert call("verify", "--store", path).status == DONE
    lost = lose(path, topic)
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()
    for _ in range(2):
        answer = call("verify", "--store", path, "--json")
        assert answer.status == FAILED
        (problem,) = [one for one in answer.json["problems"] if one["path"] == str(lost)]
        assert "the directory is gone, and its log went up to offset" in problem["reason"]


def without_checkpoints(path: Path) -> None:
    """As a process leaves it that was killed in its first minute: the pages alone tell."""
    (path / ".kafka_cleanshutdown").unlink()
    for checkpoint in path.glob("*-checkpoint"):
        checkpoint.unlink()


@pytest.mark.parametrize("topic", [CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC])
@pytest.mark.parametrize("options", [[], ["--repair", "--dry-run"], ["--repair"]])
def test_its_page_names_it_before_the_first_checkpoint(path, topic, options):
    lost = lose(path, topic)
    without_checkpoints(path)
    answer = call("verify", *options, "--store", path, "--json")
    assert answer.status == FAILED
    told = [*answer.json.get("problems", ()), *answer.json.get("refused", ())]
    (problem,) = [one for one in told if one["path"] == str(lost)]
    assert "the directory is gone, and its log went up to offset" in problem["reason"]


def test_its_page_names_one_that_is_made_anew(path, caplog):
    lost = lose(path, TRANSACTION_STATE_TOPIC)
    without_checkpoints(path)
    with eoslog.open(path) as store:
        with store.producer(transactional_id="id") as producer:
            producer.init_transactions()
        assert f"the directory of {lost.name} is gone" in caplog.text
        reasons = [one["reason"] for one in store.verify() if one["path"] == str(lost)]
        assert any("its directory was gone" in reason for reason in reasons)


def test_one_that_was_made_anew_is_named(path):
    lost = lose(path, CONSUMER_OFFSETS_TOPIC)
    with eoslog.open(path) as store:
        with store.consumer("readers") as consumer:
            consumer.commit({T0: 1})
        assert lost.is_dir()
        reasons = [one["reason"] for one in store.verify() if one["path"] == str(lost)]
        assert any("its directory was gone" in reason for reason in reasons)


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_repair_refuses(path, options):
    """It might have said that what is torn elsewhere was acknowledged."""
    lost = lose(path, TRANSACTION_STATE_TOPIC)
    (path / ".kafka_cleanshutdown").unlink()
    (path / RECOVERY_POINT).unlink()
    (log,) = logs(path / "t-0")
    torn = log.read_bytes()[:-1]
    log.write_bytes(torn)
    answer = call("verify", "--repair", *options, "--store", path, "--json")
    assert answer.status == FAILED
    assert str(lost) in [one["path"] for one in answer.json["refused"]]
    assert log.read_bytes() == torn


def test_an_empty_directory_in_its_place_is_what_to_go_on_with(path):
    lost = lose(path, CONSUMER_OFFSETS_TOPIC)
    lost.mkdir()
    assert call("verify", "--store", path).status == FAILED
    with eoslog.open(path) as store:
        store.groups()  # Its close writes the checkpoints again.
    assert call("verify", "--store", path).status == DONE
    assert call("verify", "--repair", "--store", path).status == DONE
