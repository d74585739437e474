"""What an error of `Store.close()` says of the records."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StoreError, StoreFullError
from eoslog.session import lock
from eoslog.store.store import engine_of, parts_of

WHERE = TopicPartition("rows", 0)


@pytest.fixture
def path(tmp_path) -> Path:
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("rows")
    return tmp_path / "store"


def values(path: Path) -> list[bytes | None]:
    with eoslog.open(path) as store, store.consumer() as consumer:
        consumer.assign([WHERE])
        return [record.value for record in consumer.poll(0)]


def full(*_: object, **__: object) -> None:
    raise StoreFullError("no room")


def test_behind_the_last_append_the_records_are_in(path, monkeypatch):
    store = eoslog.open(path)
    store.producer(config={"linger.ms": 60_000}).send("rows", b"gathered")
    monkeypatch.setattr(parts_of(store).files.checkpoints, "write", full)
    with pytest.raises(StoreFullError, match="no room") as caught:
        store.close()
    assert caught.value.outcome == "unknown"
    assert not caught.value.retriable
    assert caught.value.__notes__ == [
        "the store is closed, and what was appended is in the log: the next opening recovers it"
    ]
    store.close()
    assert values(path) == [b"gathered"]
    # Of the class as before.
    assert StoreFullError("another").outcome == "not_appended"
    assert StoreFullError("another").retriable


@pytest.mark.parametrize("part", ["state/processes", "state/opening.lock", "state/session.json"])
def test_whatever_the_system_refuses_the_records_are_in(path, monkeypatch, part):
    """A directory that cannot be read, a file that cannot be opened, one that cannot be removed."""

    def refusing(real):
        def call(place, *arguments, **options):
            if str(place).endswith(part):
                raise OSError(errno.EMFILE, "not now", str(place))
            return real(place, *arguments, **options)

        return call

    store = eoslog.open(path)
    store.producer(config={"linger.ms": 60_000}).send("rows", b"gathered")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refusing(Path.iterdir))
        patched.setattr(os, "unlink", refusing(os.unlink))
        patched.setattr(lock, "UnforkedFile", refusing(lock.UnforkedFile))
        with pytest.raises(StoreError, match="not now") as caught:
            store.close()
    assert caught.value.outcome == "unknown"
    assert not caught.value.retriable
    assert values(path) == [b"gathered"]


def test_an_append_that_failed_says_so_first(path, monkeypatch):
    store = eoslog.open(path)
    producer = store.producer(config={"linger.ms": 60_000})
    producer.send("rows", b"gathered")
    monkeypatch.setattr(parts_of(store).files.checkpoints, "write", full)
    monkeypatch.setattr(engine_of(store).partition("rows", 0), "append_accumulated", full)
    with pytest.raises(StoreFullError) as caught:
        store.close()
    assert caught.value.outcome == "not_appended"
    assert caught.value.__notes__ == ["and: no room"]
    assert values(path) == []
