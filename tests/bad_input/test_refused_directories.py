"""Each directory of a store in its turn may not be entered: named errors, and all is as it was."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bad_input.small_store import TOPIC, check_whole, make_store
from harness.fork import as_nobody
from store_copies import copy_store

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError
from eoslog.store.store import engine_of

pytestmark = pytest.mark.forked

APP = "job"
GROUP = "group"
STAGED_BEFORE = b"staged before"
# Of a topic of the store's own one directory stands for all of them.
_ALIKE = ("__consumer_offsets-", "__transaction_state-")


@pytest.fixture
def own_path() -> Iterator[Path]:
    """A directory that anybody may enter and write; tmp_path is the user's of the tests alone."""
    path = Path(tempfile.mkdtemp(prefix="refused-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def stage(path: Path, run_id: str, value: bytes) -> bytes:
    with eoslog.StagedWriter(path, APP, run_id, "1", partitions={"staged": 1}) as writer:
        writer.append("staged", 0, [value])
    return writer.message


def make_whole_store(path: Path, copy: Path) -> None:
    """One of each: a topic, a transaction, a group's offsets, a run that is in, one that is not.
    The copy is of the store while it is open: as a process that was killed leaves it.
    """
    make_store(path)
    with eoslog.open(path) as store:
        store.create_topic("staged", partitions=1)
        store.create_topic("transactions", partitions=1)
        producer = store.producer(transactional_id="id")
        producer.init_transactions()
        with producer.transaction():
            producer.send("transactions", b"value")
            producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): 5}, GROUP)
        store.commit_staged(APP, 0, [stage(path, "in", STAGED_BEFORE)], run_id="in")
        stage(path, "undecided", b"never decided")
        copy_store(path, copy)


def uses(store: eoslog.Store, path: Path) -> dict[str, Callable[[], object]]:
    """What a program does with a store."""

    def transaction() -> None:
        producer = store.producer(transactional_id="id")
        producer.init_transactions()
        with producer.transaction():
            producer.send("transactions", b"value")
            producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): 6}, GROUP)

    def read() -> None:
        with store.consumer(group=GROUP) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            consumer.poll(timeout=0)
            consumer.commit()

    def subscribe() -> None:
        with store.consumer(group="other") as consumer:
            consumer.subscribe([TOPIC])
            consumer.poll(timeout=0)

    def commit_staged() -> None:
        message = stage(path, "another", b"of another run")
        store.commit_staged(APP, 1, [message], run_id="another")

    def make_topic() -> None:
        store.create_topic("made")
        store.delete_topic("made")

    return {
        "transaction": transaction,
        "read": read,
        "subscribe": subscribe,
        "commit_staged": commit_staged,
        "make_topic": make_topic,
        "sweep_run": lambda: store.sweep_run(APP, "undecided"),
        "topics": store.topics,
        "groups": store.groups,
        "producers": store.producers,
        "processes": store.processes,
        "snapshot": store.snapshot,
        "verify": store.verify,
        "delete_offsets": lambda: store.delete_offsets("other", [TopicPartition(TOPIC, 0)]),
        "delete_group": lambda: store.delete_group("other"),
        "hanging": store.find_hanging_transactions,
        "flush": store.flush,
    }


def refused_by(path: Path) -> list[str]:
    """Use the store; what was refused. Whatever is not the engine's own error is raised."""
    refused = []
    try:
        store = eoslog.open(path)
    except EoslogError as error:
        return [f"open: {error}"]
    for name, use in uses(store, path).items():
        try:
            use()
        except EoslogError as error:
            refused.append(f"{name}: {error}")
    try:
        store.close()
    except EoslogError as error:
        refused.append(f"close: {error}")
    return refused


def directories(path: Path) -> list[Path]:
    found = sorted(one.relative_to(path) for one in path.rglob("*") if one.is_dir())
    alike: set[str] = set()
    kept = []
    for one in found:
        prefix = next((name for name in _ALIKE if one.name.startswith(name)), None)
        if prefix is None or prefix not in alike:
            kept.append(one)
        if prefix is not None:
            alike.add(prefix)
    return kept


@contextmanager
def forbidden(path: Path) -> Iterator[None]:
    path.chmod(0)
    yield
    if path.exists():
        path.chmod(0o700)


def staged_values(store: eoslog.Store) -> list[bytes]:
    records, _ = engine_of(store).partition("staged", 0).fetch_records(0, 100, 1 << 20)
    return [record.value for record in records]


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
def test_each_directory_refused(own_path, is_clean):
    # What is imported only when it is used may not be readable to nobody.
    make_whole_store(own_path / "first", own_path / "second")
    assert refused_by(own_path / "first") == []
    as_nobody()
    closed, killed = own_path / "closed", own_path / "killed"
    make_whole_store(closed, killed)
    model = closed if is_clean else killed
    told = {}
    for refused in directories(model):
        path = own_path / "store"
        copy_store(model, path)
        with forbidden(path / refused):
            told[str(refused)] = refused_by(path)
        with eoslog.open(path) as store:
            check_whole(store)
            values = staged_values(store)
            assert values[0] == STAGED_BEFORE
            assert values[1:] in ([], [b"of another run"])
            assert store.verify() == []
        shutil.rmtree(path)
    assert any("open: " in one for one in told["state/lmdb"])
    assert any("sweep_run: " in one for one in told["staging/job"])
    assert any(f"{TOPIC}-0" in one for one in told[f"{TOPIC}-0"])
