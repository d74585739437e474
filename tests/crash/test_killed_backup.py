"""A backup or restore that is killed leaves nothing that opens as a store, and holds nothing up."""

import os
import signal
from pathlib import Path

import pytest
from harness.fork import Fork, Kill, dies_in_child
from stores import QUIET, values_of

import eoslog
from eoslog import TopicPartition
from eoslog.errors import NotAStoreError
from eoslog.exchange import restore  # The module.
from eoslog.fs import new_directory
from eoslog.store import backup as module
from eoslog.store.store import engine_of
from eoslog.transactions import producer_ids

pytestmark = pytest.mark.crash
T0 = TopicPartition("t", 0)
VALUES = [b"%04d" % number + bytes(500) for number in range(40)]

# By the step of docs/crash-points.md that they come before or after.
DEATHS = {
    "B1": Kill(new_directory, "_make_locked", when="after"),
    "B2": Kill(module._Backup, "_recover_rest"),
    "B3": Kill(module._Backup, "_copy_lmdb", when="after"),
    "B4": Kill(module._Backup, "_ends", when="after"),
    "B5": Kill(module._Backup, "_copy_staged_files", when="after"),
    "B6, at a file": Kill(module, "copy_bytes", nth=5, when="after"),
    "B6": Kill(module._Backup, "_copy_logs", when="after"),
    "B7, without its ids": Kill(module, "write_meta_properties"),
    "B7": Kill(module._Backup, "_write_state", when="after"),
    "B8, open": Kill(module, "remove_kept_journals"),
    "B8": Kill(module._Backup, "recover", when="after"),
    "B9, synced": Kill(new_directory, "check_free", nth=2),
    "B9, named": Kill(new_directory, "sync_directory"),
}


def back_up_in_a_child(path: Path, copy: Path, death: Kill) -> None:
    death.arm()
    with eoslog.open(path, config=QUIET) as store:
        store.backup(copy)


def stores_beside(path: Path) -> list[str]:
    """The directories that open as a store, at whatever depth an opener may try."""
    found = []
    for one in sorted(path.parent.rglob("*")):
        if one.is_dir():
            try:
                eoslog.open(one).close()
            except NotAStoreError:
                continue
            except eoslog.errors.StoreInUseError:
                assert one == path
            found.append(one.name)
    return found


@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS.keys())
def test_nothing_of_it_is_a_store(tmp_path, death):
    path, copy = tmp_path / "store", tmp_path / "copy"
    with eoslog.open(path, create=True, config=QUIET, durability="process") as store:
        store.create_topic("t", config={"segment.bytes": 4096})
        partition = engine_of(store).partition("t", 0)
        for value in VALUES:
            partition.append_columns([value])
        assert dies_in_child(lambda: back_up_in_a_child(path, copy, death))
        named = death is DEATHS["B9, named"]
        assert stores_beside(path) == (["copy", "store"] if named else ["store"])
        # The store goes on, and its files may go.
        partition.append_columns([b"later"])
        store.delete_records({T0: 30})
        assert partition.log.first_base_offset > 20
        # The next one finds its place free, and removes what was left.
        second = tmp_path / "second" if named else copy
        store.backup(second)
        assert len(values_of(store, "t")) == 11
    names = {"store", "copy", second.name}
    assert {one.name for one in tmp_path.iterdir()} == names
    for name in names - {"store"}:
        with eoslog.open(tmp_path / name, config=QUIET) as of_then:
            assert of_then.verify() == []
            assert values_of(of_then, "t")[-11:-1] == VALUES[30:] or name == "copy"


DEATHS_OF_RESTORES = {
    "RS1": Kill(restore, "copy_closed_store", when="after"),
    "RS2": Kill(restore, "write_meta_properties", when="after"),
    "RS3, open": Kill(producer_ids.ProducerIds, "pass_over", when="after"),
    "RS3": Kill(restore, "remove_kept_journals", when="after"),
    "RS4, synced": Kill(new_directory, "check_free", nth=2),
    "RS4, named": Kill(new_directory, "sync_directory"),
}


@pytest.mark.parametrize("death", DEATHS_OF_RESTORES.values(), ids=DEATHS_OF_RESTORES.keys())
def test_a_killed_restore_leaves_no_store(tmp_path, death):
    path, copy, restored = (tmp_path / name for name in ("store", "copy", "restored"))
    with eoslog.open(path, create=True, config=QUIET, durability="process") as store:
        store.create_topic("t")
        engine_of(store).partition("t", 0).append_columns(VALUES)
        store.backup(copy)

    def die_restoring() -> None:
        death.arm()
        eoslog.restore(copy, restored)

    assert dies_in_child(die_restoring)
    named = death is DEATHS_OF_RESTORES["RS4, named"]
    assert stores_beside(path) == ["copy", *(["restored"] if named else []), "store"]
    if not named:
        eoslog.restore(copy, restored)
    assert {one.name for one in tmp_path.iterdir()} == {"store", "copy", "restored"}
    with eoslog.open(restored, config=QUIET) as again:
        assert values_of(again, "t") == VALUES
        assert again.verify() == []


def test_what_another_one_builds_is_left_alone(tmp_path):
    path, copy = tmp_path / "store", tmp_path / "copy"

    def stop_while_copying(fork: Fork) -> None:
        with eoslog.open(path, config=QUIET) as store:
            calls = []

            def progress(done: int, total: int) -> None:
                calls.append(done)
                if len(calls) == 1:
                    fork.say("copying")
                    fork.wait()

            store.backup(copy, progress=progress)

    with eoslog.open(path, create=True, config=QUIET, durability="process") as store:
        store.create_topic("t")
        engine_of(store).partition("t", 0).append_columns(VALUES)
        with Fork(stop_while_copying) as child:
            child.hear()
            (building,) = (one for one in tmp_path.iterdir() if one.name.startswith(".copy."))
            # Another one of the same name meets it, as an import would.
            with new_directory.new_directory(copy, eoslog.errors.StoreError) as new:
                assert new.workspace != building
                assert building.is_dir()
            child.tell()
            child.end()
    with eoslog.open(copy, config=QUIET) as of_then:
        assert values_of(of_then, "t") == VALUES


def test_a_killed_one_holds_up_no_deletion(tmp_path):
    path, copy = tmp_path / "store", tmp_path / "copy"

    def back_up(fork: Fork) -> None:
        with eoslog.open(path, config=QUIET) as store:
            store.backup(copy, progress=lambda *_: fork.say("copying") or fork.wait())

    with eoslog.open(path, create=True, config=QUIET, durability="process") as store:
        store.create_topic("t", config={"segment.bytes": 4096})
        partition = engine_of(store).partition("t", 0)
        for value in VALUES:
            partition.append_columns([value])
        with Fork(back_up) as child:
            child.hear()
            store.delete_records({T0: 30})
            assert partition.log.first_base_offset == 0
            os.kill(child.pid, signal.SIGKILL)
            child.reap()
        store.delete_records({T0: 31})
        assert partition.log.first_base_offset > 20
