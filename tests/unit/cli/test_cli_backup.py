"""`eoslog backup` and `eoslog restore`: what they print, and their mistakes."""

import os

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call
from stores import values_of

import eoslog
from eoslog.store.store import engine_of


@pytest.fixture
def used(store):
    """A store that this process has open, with sealed segments."""
    store.create_topic("t", partitions=2, config={"segment.bytes": 4096})
    partition = engine_of(store).partition("t", 0)
    for number in range(30):
        partition.append_columns([b"%06d" % number + bytes(500)])
    store.close()
    return store.path


def test_the_result_is_told(used, tmp_path):
    answer = call("--store", used, "backup", tmp_path / "copy")
    assert answer.status == DONE
    assert answer.stdout.startswith(f"{tmp_path / 'copy'}: 1 topic, 2 partitions, 0.0 MB copied; ")
    with eoslog.open(tmp_path / "copy") as of_then:
        assert len(values_of(of_then, "t")) == 30
    answer = call("restore", tmp_path / "copy", tmp_path / "restored")
    assert answer.status == DONE
    assert answer.stdout.startswith(f"{tmp_path / 'restored'}: 1 topic, 2 partitions; its id is ")
    with eoslog.open(tmp_path / "restored") as again:
        assert len(values_of(again, "t")) == 30


def test_the_result_as_json(used, tmp_path):
    first = call("backup", tmp_path / "1", "--store", used, "--json").json
    assert (first["path"], first["partitions"], first["linked_bytes"]) == (
        *(str(tmp_path / "1"), 2),
        0,
    )
    earlier = ("--incremental-from", tmp_path / "1")
    second = call("backup", tmp_path / "2", "--store", used, "--json", *earlier).json
    assert second["linked_bytes"] > second["copied_bytes"]
    third = call("backup", tmp_path / "3", "--store", used, "--json", "--link").json
    assert third["linked_bytes"] == second["linked_bytes"]
    found = call("restore", tmp_path / "3", tmp_path / "restored", "--json").json
    assert found["topics"] == 1


def test_a_damaged_file_of_the_earlier_backup_is_named(used, tmp_path):
    call("backup", tmp_path / "1", "--store", used)
    path = tmp_path / "1" / "t-0" / f"{0:020d}.log"
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    earlier = ("--incremental-from", tmp_path / "1")
    answer = call("backup", tmp_path / "2", "--store", used, *earlier)
    assert f"damaged in the earlier backup, copied again: {path}" in answer.stdout


def test_mistakes(used, tmp_path):
    assert_mistake(call("backup", tmp_path / "copy"), WRONG_USE, "no store")
    assert_mistake(call("--store", used, "backup", used), FAILED, "must not contain each other")
    assert_mistake(call("restore", tmp_path / "none", tmp_path / "x"), FAILED, "is not a store")
    call("--store", used, "backup", tmp_path / "copy")
    assert_mistake(call("restore", tmp_path / "copy", used), FAILED, "is not empty")
    earlier = ("--incremental-from", tmp_path / "none")
    answer = call("--store", used, "backup", tmp_path / "copy2", *earlier)
    assert_mistake(answer, FAILED, "none is not a store")
