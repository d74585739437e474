"""`verify --repair --dry-run` says what the repair does then, whatever is wrong with the store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_calls import DONE, FAILED, assert_mistake, call
from staged_jobs import load, value_of
from stores import QUIET
from unclean_stops import as_of_a_crash

import eoslog
from eoslog.bindings.record_batch import iter_batches
from eoslog.errors import StoreFullError
from eoslog.fs.checkpoint_file import RECOVERY_POINT, write_checkpoints
from eoslog.inspect import store_copy

pytestmark = pytest.mark.crash

Damage = Callable[[Path], Any]


@pytest.fixture(params=["closed", "stopped"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A store with several segments, transactions, offsets and a staged job."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        store.create_topic("t", 2, config={"segment.bytes": 4096, "index.interval.bytes": 300})
        with store.producer() as producer:
            for number in range(60):
                producer.append("t", 0, [b"%04d" % number + b"x" * 100])
        with store.producer(transactional_id="id") as producer:
            producer.init_transactions()
            for end in ("commit_transaction", "abort_transaction"):
                producer.begin_transaction()
                producer.append("t", 0, [b"of a transaction"])
                producer.send_offsets_to_transaction({eoslog.TopicPartition("t", 0): 3}, "g")
                getattr(producer, end)()
        load(store, "bulk", {("t", 1): [value_of(number) for number in range(20)]})
    if request.param == "stopped":
        as_of_a_crash(path)
    return path


def logs(path: Path, name: str = "t-0") -> list[Path]:
    return sorted((path / name).glob("*.log"))


def internal(path: Path, topic: str) -> Path:
    return max(path.glob(f"__{topic}-*"), key=lambda one: logs(path, one.name)[0].stat().st_size)


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x40
    file.write_bytes(data)


def flip_batch(log: Path, number: int) -> None:
    batches = list(iter_batches(log.read_bytes()))
    flip(log, int(batches[number].position_bytes) + 65)


def tear(log: Path) -> None:
    """Noise behind the last batch."""
    data = log.read_bytes()
    *_, last = iter_batches(data)
    end = int(last.position_bytes + last.batch_bytes)
    log.write_bytes(data[:end] + b"noise" + data[end + 5 :])


def lose(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def lmdb_of(path: Path) -> Path:
    return path / "state" / "lmdb" / "data.mdb"


def spoil_index(path: Path, suffix: str) -> None:
    for file in (path / "t-0").glob(f"*{suffix}"):
        if file.stat().st_size:
            flip(file, 0)


DAMAGES: dict[str, Damage] = {
    "nothing": lambda path: None,
    "a torn end": lambda path: tear(logs(path)[-1]),
    "a damaged last batch": lambda path: flip_batch(logs(path)[-1], -1),
    "a damaged batch in the middle": lambda path: flip_batch(logs(path)[-1], 0),
    "a damaged batch in a sealed segment": lambda path: flip_batch(logs(path)[0], 3),
    "a sealed segment without its end": lambda path: os.truncate(logs(path)[0], 1000),
    "a segment that is gone": lambda path: lose(logs(path)[1]),
    "the oldest segment gone": lambda path: lose(logs(path)[0]),
    "all segments gone": lambda path: [lose(one) for one in logs(path)],
    "a partition that is gone": lambda path: lose(path / "t-1"),
    "a partition of the state log gone": lambda path: lose(internal(path, "transaction_state")),
    "a partition of offsets gone": lambda path: lose(internal(path, "consumer_offsets")),
    "a damaged decision": lambda path: flip_batch(
        logs(path, internal(path, "transaction_state").name)[0], 1
    ),
    "torn offsets": lambda path: tear(logs(path, internal(path, "consumer_offsets").name)[-1]),
    "indexes": lambda path: spoil_index(path, ".index"),
    "time indexes": lambda path: spoil_index(path, ".timeindex"),
    "abort indexes": lambda path: spoil_index(path, ".txnindex"),
    "indexes gone": lambda path: [lose(one) for one in (path / "t-0").glob("*index")],
    "snapshots": lambda path: spoil_index(path, ".snapshot"),
    "LMDB": lambda path: lmdb_of(path).write_bytes(b"no LMDB" * 1000),
    "LMDB's middle": lambda path: flip(lmdb_of(path), 3 * 4096 + 20),
    "LMDB gone": lambda path: lose(path / "state" / "lmdb"),
    "LMDB and snapshots": lambda path: (
        spoil_index(path, ".snapshot"),
        flip(lmdb_of(path), 3 * 4096 + 20),
    ),
    "all of state gone": lambda path: lose(path / "state"),
    "topics.json": lambda path: (path / "state" / "topics.json").write_text("{"),
    "topics.json gone": lambda path: lose(path / "state" / "topics.json"),
    "meta.properties": lambda path: (path / "meta.properties").write_text("version=x\n"),
    "a checkpoint": lambda path: (path / RECOVERY_POINT).write_text("no checkpoint"),
    "a checkpoint beyond its log": lambda path: write_checkpoints(
        {path / RECOVERY_POINT: {eoslog.TopicPartition("t", 0): 5000}}
    ),
    "checkpoints gone": lambda path: [lose(one) for one in path.glob("*-checkpoint")],
    "a directory of no topic": lambda path: shutil.copytree(path / "t-0", path / "other-0"),
    "another topic's id": lambda path: (path / "t-1" / "partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
    ),
    "a torn copy": lambda path: (lose(path / "t-1"), shutil.copytree(path / "t-0", path / "t-1")),
    "torn ends and indexes": lambda path: (
        tear(logs(path)[-1]),
        spoil_index(path, ".txnindex"),
    ),
    "torn ends and a sealed segment": lambda path: (
        tear(logs(path)[-1]),
        flip_batch(logs(path)[0], 2),
    ),
}


def everything(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(one.relative_to(path)): (one.read_bytes(), one.stat().st_nlink)
        for one in sorted(path.rglob("*"))
        if one.is_file() and one.name not in ("lock", "opening.lock")
    }


def told(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Changes without the time in the names of what is kept."""
    return sorted(
        (one["path"], one["what"], one["bytes"], one["reason"], one["kept"].rpartition(".")[0])
        for one in changes
    )


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_dry_run_says_what_the_repair_does(path, damage):
    DAMAGES[damage](path)
    before = everything(path)
    text = call("verify", "--repair", "--dry-run", "--store", path)
    dry = call("verify", "--repair", "--dry-run", "--store", path, "--json")
    assert everything(path) == before
    assert [one.name for one in path.parent.iterdir()] == ["store"]
    real = call("verify", "--repair", "--store", path, "--json")
    if not dry.stdout:
        assert (dry.status, real.stdout, text.stdout) == (real.status, "", "")
        assert dry.stderr == real.stderr == text.stderr
        return
    assert f"a repair would end with status {real.status}" in text.stdout
    if real.json.get("refused"):
        done = [line for line in real.stderr.splitlines() if line.startswith("done: ")]
        assert len(dry.json["planned"]) == len(done) + len(real.json["planned"])
        assert dry.json["refused"] == real.json["refused"]
        assert dry.status == real.status == FAILED
        return
    assert told(dry.json["planned"]) == told(real.json["changes"])
    assert dry.json["refused"] == []
    assert dry.json.get("problems", []) == real.json["problems"]
    assert dry.status == (DONE if real.status == DONE and not real.json["changes"] else FAILED)
    assert dry.json["sound"] == (dry.status == DONE)


def test_a_dry_run_without_room_for_a_copy_says_so(path, monkeypatch):
    usage = shutil.disk_usage(path)
    monkeypatch.setattr(store_copy.shutil, "disk_usage", lambda _: usage._replace(free=10))
    answer = call("verify", "--repair", "--dry-run", "--store", path)
    assert_mistake(answer, FAILED, "no room for a copy", StoreFullError.__name__)
    assert [one.name for one in path.parent.iterdir()] == ["store"]


def test_a_copy_has_the_links_and_holes_of_a_store_and_leads_nowhere_else(tmp_path):
    source = tmp_path / "store"
    (source / "inner").mkdir(parents=True)
    (source / "one").write_bytes(b"1" * 5000)
    os.link(source / "one", source / "inner" / "same")
    (tmp_path / "elsewhere").write_bytes(b"far")
    (source / "link").symlink_to(tmp_path / "elsewhere")
    (source / "nowhere").symlink_to(tmp_path / "gone")
    os.mkfifo(source / "pipe")
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 24)
        file.seek(1 << 23)
        file.write(b"data")
    with store_copy.copied_store(source) as copy:
        assert (copy / "one").samefile(copy / "inner" / "same")
        assert (copy / "one").read_bytes() == (source / "one").read_bytes()
        assert not (copy / "one").samefile(source / "one")
        assert (copy / "link").read_bytes() == b"far"
        assert not (copy / "link").is_symlink()
        assert (copy / "nowhere").is_symlink()
        assert (copy / "pipe").is_fifo()
        assert (copy / "sparse").read_bytes() == (source / "sparse").read_bytes()
        assert (copy / "sparse").stat().st_blocks * 512 < 1 << 22
        assert copy.parent.parent == source.parent
    assert not copy.exists()
