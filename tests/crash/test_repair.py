"""`verify --repair`: the torn is cut and kept, the derived comes anew, the rest is refused."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call
from harness.fork import Kill, dies_in_child
from noted_sums import forget_sums
from store_copies import copy_store
from stores import QUIET
from unclean_stops import as_of_a_crash

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import iter_batches
from eoslog.errors import StoreInUseError
from eoslog.fs.checkpoint_file import RECOVERY_POINT, read_checkpoint, write_checkpoints
from eoslog.inspect import store_repair
from eoslog.inspect.store_repair import StoreRepair
from eoslog.store.retention import apply_retention
from eoslog.store.store import engine_of, parts_of

pytestmark = pytest.mark.crash

T0 = TopicPartition("t", 0)


def make(path: Path, records: int = 40) -> None:
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        store.create_topic("t", config={"segment.bytes": 4096, "index.interval.bytes": 300})
        with store.producer() as producer:
            for number in range(records):
                producer.append("t", 0, [b"%04d" % number + b"x" * 100])
        with store.producer(transactional_id="id") as producer:
            producer.init_transactions()
            for commit in (True, False):
                producer.begin_transaction()
                producer.append("t", 0, [b"of a transaction"])
                (producer.commit_transaction if commit else producer.abort_transaction)()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was closed cleanly."""
    make(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def stopped(path: Path) -> Path:
    """One that was not: nothing is known to be synced."""
    as_of_a_crash(path)
    return path


def repair(path: Path, *more: str) -> tuple[int, Any]:
    answer = call("verify", "--repair", "--store", path, "--json", *more)
    return answer.status, answer.json


def logs(path: Path) -> list[Path]:
    return sorted((path / "t-0").glob("*.log"))


def everything(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in sorted(path.rglob("*"))
        if one.is_file() and one.name not in ("lock", "opening.lock")
    }


def values(path: Path) -> list[bytes]:
    with eoslog.open(path) as store, store.consumer(isolation_level="read_uncommitted") as consumer:
        consumer.assign([T0])
        found = []
        while records := consumer.poll(0):
            found += [record.value for record in records]
        return found


def last_position(log: Path) -> int:
    *_, last = iter_batches(log.read_bytes())
    return int(last.position_bytes)


def cut_log(log: Path, position_bytes: int) -> bytes:
    """Cut a file, and return what was cut off."""
    data = log.read_bytes()
    log.write_bytes(data[:position_bytes])
    return data[position_bytes:]


# Torn tails.


@pytest.mark.parametrize("how", ["short", "flipped", "noise", "half a header"])
def test_a_torn_tail_is_cut_and_kept(stopped, how):
    log = logs(stopped)[-1]
    whole = log.read_bytes()
    at = last_position(log)
    torn = {
        "short": whole[at:-12],
        "flipped": whole[at:-1] + b"\1",
        "noise": random.Random(1).randbytes(500) + b"\1",
        "half a header": whole[at : at + 30],
    }[how]
    log.write_bytes(whole[:at] + torn + bytes(1000))
    before = everything(stopped)
    status, said = repair(stopped, "--dry-run")
    assert (status, said["refused"]) == (FAILED, [])
    assert everything(stopped) == before
    status, said = repair(stopped)
    assert (status, said["sound"]) == (DONE, True)
    (change,) = said["changes"]
    assert (change["path"], change["bytes"]) == (str(log), len(torn.rstrip(b"\0")))
    assert f"cut at byte {at}" in change["what"]
    assert Path(change["kept"]).parent == stopped / "state" / "cut" / "t-0"
    assert Path(change["kept"]).read_bytes() == torn.rstrip(b"\0")
    # The marker of the second transaction was what was torn: it is written once more.
    assert len(values(stopped)) == 42
    status, said = repair(stopped)
    assert (status, said["sound"], said["changes"]) == (DONE, True, [])


def test_a_copy_that_finds_no_room_is_removed(stopped, monkeypatch):
    log = logs(stopped)[-1]
    cut_log(log, last_position(log) + 40)
    before = everything(stopped)

    def fail(_: Path) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(store_repair, "sync_file", fail)
    assert call("verify", "--repair", "--store", stopped).status != DONE
    assert everything(stopped) == before


def test_a_sound_store_is_left_as_it_is(path):
    status, said = repair(path, "--dry-run")
    assert (status, said) == (DONE, {"sound": True, "planned": [], "refused": []})
    before = {name: data for name, data in everything(path).items() if name.endswith(".log")}
    status, said = repair(path)
    assert (status, said["changes"], said["problems"]) == (DONE, [], [])
    assert {one: data for one, data in everything(path).items() if one in before} == before
    assert not list((path / "state" / "cut").rglob("*.log.*"))


def test_text_says_what_was_done(stopped):
    log = logs(stopped)[-1]
    log.write_bytes(log.read_bytes() + b"noise")
    answer = call("verify", "--repair", "--dry-run", "--store", stopped)
    assert answer.status == FAILED
    assert answer.stdout.startswith(f"would be done: {log}: cut at byte ")
    assert "nothing was changed: 1 repairs possible, 0 refused" in answer.stdout
    answer = call("verify", "--repair", "--store", stopped)
    assert answer.status == DONE
    assert answer.stdout.startswith(f"done: {log}: cut at byte ")
    assert "5 bytes, kept as " in answer.stdout
    assert "sound: " in answer.stdout


def test_what_opening_cut_is_said_by_verify(stopped):
    log = logs(stopped)[-1]
    log.write_bytes(log.read_bytes() + b"noise")
    for _ in range(2):  # The first one cuts nothing.
        answer = call("verify", "--store", stopped, "--json")
        assert answer.status == DONE
        assert answer.json["recovered"] == [
            {"partition": "t-0", "bytes": 5, "offset": 44, "kept": None}
        ]
        assert "cuts 5 bytes off after offset 44" in call("verify", "--store", stopped).stdout
    eoslog.open(stopped).close()
    assert call("verify", "--store", stopped, "--json").json["recovered"] == []


# What is refused, and why.


def assert_refused(path: Path, *words: str) -> None:
    before = everything(path)
    status, said = repair(path)
    assert status == FAILED
    assert said["refused"], said
    text = json.dumps(said["refused"])
    for word in words:
        assert word in text, text
    assert everything(path) == before


@pytest.mark.parametrize("which", [0, -1])
def test_a_damaged_record_in_the_middle(stopped, which):
    log = logs(stopped)[which]
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    assert_refused(stopped, "no torn end: a whole batch at offset", "at byte 0")


def test_a_whole_batch_with_another_base_offset(stopped):
    log = logs(stopped)[-1]
    data = bytearray(log.read_bytes())
    data[last_position(log) + 7] = 0
    log.write_bytes(data)
    assert_refused(stopped, "no torn end: a whole batch at offset 0 stands there")


def test_a_file_with_another_name(stopped):
    log = logs(stopped)[0]
    for other in logs(stopped)[1:]:
        other.unlink()
    log.rename(log.with_name("00000000000000000072.log"))
    assert_refused(stopped, "no torn end: a whole batch at offset 0 stands there")


@pytest.mark.parametrize("by", [-3, 3])
@pytest.mark.parametrize("which", [1, -1])
def test_a_name_that_does_not_follow_on(path, which, by):
    log = logs(path)[which]
    base = int(log.stem)
    log.rename(log.with_name(f"{base + by:020d}.log"))
    status, said = repair(path)
    assert status == FAILED
    assert said["refused"], said
    answer = call("verify", "--store", path, "--json")
    assert answer.status == FAILED
    reasons = [one["reason"] for one in answer.json["problems"]]
    if by < 0:
        assert any(f"begins at offset {base - 3} by its name" in one for one in reasons), reasons
    else:
        assert reasons


def test_a_tail_of_a_clean_stop(path):
    log = logs(path)[-1]
    cut_log(log, last_position(log) + 20)
    assert_refused(path, "closed cleanly", "Records that were synced")


def test_bytes_behind_the_end_of_a_clean_stop(path):
    with logs(path)[-1].open("ab") as log:
        log.write(b"?" * 60)
    assert_refused(path, "closed cleanly", "60 bytes are there, too few for a batch")


def test_a_tail_below_the_recovery_point(stopped):
    write_checkpoints({stopped / RECOVERY_POINT: {T0: 44}})
    log = logs(stopped)[-1]
    cut_log(log, last_position(log) + 20)
    assert_refused(stopped, "the recovery point shows that the log went up to offset 44")


def test_a_tail_that_a_group_has_read(path):
    with eoslog.open(path) as store, store.consumer("readers") as consumer:
        consumer.commit({T0: 44})
    as_of_a_crash(path)
    log = logs(path)[-1]
    cut_log(log, last_position(log) + 20)
    assert_refused(path, "the committed offset of group 'readers' shows", "up to offset 44")


def test_a_tail_with_all_of_a_committed_transaction(stopped):
    log = logs(stopped)[-1]
    first = next(one for one in iter_batches(log.read_bytes()) if one.is_transactional)
    cut_log(log, first.position_bytes + 30)
    assert_refused(stopped, "the transaction of 'id'", "was decided to commit")


def test_a_damaged_decision(stopped):
    (log,) = [
        one for one in stopped.glob("__transaction_state-*/*.log") if b"\0\2id" in one.read_bytes()
    ]
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    assert_refused(stopped, "no torn end", "__transaction_state", "from a copy")


def test_a_torn_decision_is_cut(stopped):
    (log,) = [
        one for one in stopped.glob("__transaction_state-*/*.log") if b"\0\2id" in one.read_bytes()
    ]
    at = last_position(log)
    log.write_bytes(log.read_bytes()[:-1])
    status, said = repair(stopped)
    assert status == DONE, said
    assert [one["path"] for one in said["changes"]] == [str(log)]
    assert f"cut at byte {at}" in said["changes"][0]["what"]


def test_a_store_in_use(path):
    with eoslog.open(path), pytest.raises(StoreInUseError):
        StoreRepair(path)


def test_wrong_calls(path, tmp_path):
    assert_mistake(call("verify", "--dry-run", "--store", path), WRONG_USE, "--repair")
    answer = call("verify", "--repair", "--topic", "t", "--store", path)
    assert_mistake(answer, WRONG_USE, "--topic")
    answer = call("verify", "--repair", "--store", tmp_path / "nowhere")
    assert_mistake(answer, FAILED, "is not a store", "NotAStoreError")
    assert not (tmp_path / "nowhere").exists()


# What is derived.


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_a_derived_file_that_is_wrong_is_made_anew(path, suffix):
    files = [one for one in sorted((path / "t-0").glob(f"*{suffix}")) if one.stat().st_size > 10]
    wrong = files[-1]
    data = bytearray(wrong.read_bytes())
    data[3] ^= 0x10
    wrong.write_bytes(data)
    status, said = repair(path)
    assert (status, said["sound"]) == (DONE, True), said
    (change,) = said["changes"]
    assert change["path"] == str(wrong)
    assert Path(change["kept"]).exists()
    assert len(values(path)) == 42
    assert repair(path)[1]["changes"] == []


def test_a_checkpoint_that_is_none_is_made_anew(path):
    (path / RECOVERY_POINT).write_text("0\n7\n")
    status, said = repair(path)
    assert (status, said["sound"]) == (DONE, True), said
    assert read_checkpoint(path / RECOVERY_POINT)[T0] == 44


@pytest.mark.parametrize("content", [b"", b"version: 0\ntopic_id: x", b"\xff"])
def test_the_id_of_a_topic_that_is_damaged_is_made_anew(path, content):
    metadata = path / "t-0" / "partition.metadata"
    sound = metadata.read_bytes()
    metadata.write_bytes(content)
    status, said = repair(path, "--dry-run")
    assert (status, len(said["planned"]), said["refused"]) == (FAILED, 1, [])
    status, said = repair(path)
    assert (status, said["sound"]) == (DONE, True), said
    (change,) = said["changes"]
    assert change["path"] == str(metadata)
    assert Path(change["kept"]).read_bytes() == content
    assert metadata.read_bytes() == sound
    assert len(values(path)) == 42
    assert repair(path)[1]["changes"] == []


def test_the_id_of_another_topic_is_left_to_whoever_knows_whose_it_is(path):
    metadata = path / "t-0" / "partition.metadata"
    wrong = metadata.read_bytes()[:-22] + b"AAAAAAAAAAAAAAAAAAAAAQ"
    metadata.write_bytes(wrong)
    status, said = repair(path)
    assert status == FAILED
    assert {one["path"] for one in said["refused"]} == {str(metadata)}
    assert metadata.read_bytes() == wrong


def test_rows_that_are_wrong_are_made_anew(path):
    plant_a_wrong_row(path)
    status, said = repair(path)
    assert (status, said["sound"]) == (DONE, True), said
    (change,) = [one for one in said["changes"] if one["path"] == str(path / "state" / "lmdb")]
    assert (Path(change["kept"]) / "data.mdb").exists()
    assert repair(path)[1]["changes"] == []


@pytest.mark.parametrize("deleted", [False, True])
def test_rows_and_a_snapshot_that_are_wrong_come_from_a_whole_log(path, deleted):
    if deleted:
        with eoslog.open(path) as store:
            config = {"retention.bytes": 0, "retention.ms": -1}
            partition = engine_of(store).partition("t", 0)
            assert apply_retention(partition, parts_of(store).files.names, config, 0) > 0
    plant_a_wrong_row(path)
    wrong = max((path / "t-0").glob("*.snapshot"))
    data = bytearray(wrong.read_bytes())
    data[3] ^= 0x10
    wrong.write_bytes(data)
    status, said = repair(path)
    assert (status, said["sound"]) == ((FAILED, False) if deleted else (DONE, True)), said
    assert ["one of the two" in one["reason"] for one in said["refused"]] == [True] * deleted


def plant_a_wrong_row(path: Path) -> None:
    forget_sums(path)
    from eoslog.storage.lmdb_environment import LmdbEnvironment
    from eoslog.storage.producer_rows import ProducerRows

    topics = json.loads((path / "state" / "topics.json").read_text())["topics"]
    rows = ProducerRows(LmdbEnvironment(path / "state" / "lmdb"), topics["t"]["topic_id"], 0)
    head = rows.read_head()
    found = [bytearray(row) for _, row in rows.rows_after(0, 10)]
    found[0][36] ^= 1  # The epoch.
    rows.delete_all()
    rows.write_rows(b"".join(map(bytes, found)), head.offset)
    rows.environment.close()


def test_files_of_nobody_are_left_to_whoever_knows_them(path):
    (path / "lost-0").mkdir()
    (path / "lost-0" / "00000000000000000000.log").write_bytes(b"")
    status, said = repair(path)
    assert status == FAILED
    assert "Only you know what it is" in said["refused"][0]["advice"]
    assert (path / "lost-0" / "00000000000000000000.log").exists()


# A repair that dies.


KILLS_OF_REPAIRS = [
    *(Kill(os, "fsync", nth) for nth in (1, 2, 3, 4)),
    *(Kill(Path, "replace", nth) for nth in (1, 2, 3, 4)),
    Kill(store_repair, "_keep"),
    Kill(Path, "rename"),
]


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("kill", KILLS_OF_REPAIRS, ids=str)
def test_a_repair_that_was_killed_is_finished_by_the_next(stopped, kill):
    log = logs(stopped)[-1]
    torn = b"noise" * 50
    log.write_bytes(log.read_bytes() + torn)
    index = logs(stopped)[0].with_suffix(".index")
    index.write_bytes(index.read_bytes()[:8] * 2)

    def killed() -> None:
        kill.arm()
        call("verify", "--repair", "--store", stopped)

    assert dies_in_child(killed)
    status, said = repair(stopped)
    assert (status, said["sound"]) == (DONE, True), said
    kept = [one.read_bytes() for one in (stopped / "state" / "cut").rglob("*.log.*")]
    assert torn in kept
    assert repair(stopped)[1]["changes"] == []
    with eoslog.open(stopped) as store:
        assert store.verify() == []
    assert len(values(stopped)) == 42


def test_everything_is_refused_if_something_is(stopped):
    """Of two faults, one of which could be repaired, none is touched."""
    log = logs(stopped)[-1]
    log.write_bytes(log.read_bytes() + b"noise")
    copy_store(stopped, stopped.parent / "copy")
    first = logs(stopped)[0]
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    assert_refused(stopped, "no torn end")
    assert repair(stopped.parent / "copy")[0] == DONE
