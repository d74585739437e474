"""A store that is opened with `read_only=True`: what it shows, refuses and leaves as it was."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from commit_journals import SMALL, with_journal
from harness.fork import in_child
from read_only_stores import everything_shown, unchanged
from store_copies import copy_store

import eoslog
from eoslog import TopicPartition, errors
from eoslog.fs.file_lock import file_locked
from eoslog.session import overlay
from eoslog.session.followed_session import LOOK_S
from eoslog.store.files import StoreFiles
from eoslog.store.store import abandon, parts_of

AT = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def overlays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the overlays of a test are; none is left at its end."""
    folder = tmp_path / "overlays"
    folder.mkdir()
    monkeypatch.setattr(overlay, "MEMORY", folder)
    yield folder
    gc.collect()
    assert list(folder.iterdir()) == []


def read(store: eoslog.Store, isolation_level: str = "read_committed") -> list[bytes | None]:
    consumer = store.consumer(isolation_level=isolation_level)
    consumer.assign(one for topic in store.topics().values() for one in topic.topic_partitions())
    return sorted(record.value or b"" for record in consumer.poll(timeout=0.0))


def filled(
    open_store: Callable[..., eoslog.Store], durability: str = "commit", **config: object
) -> eoslog.Store:
    """A store with committed, aborted and open transactions, and a group."""
    store = open_store(durability, **config)
    store.create_topic("t", 2)
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    with producer.transaction():
        producer.send("t", b"committed", partition=0)
        group = store.consumer("g").group_metadata()
        producer.send_offsets_to_transaction({AT: 1}, group)
    producer.begin_transaction()
    producer.send("t", b"aborted", partition=0)
    producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("t", b"open", partition=1)
    producer.flush()
    return store


@pytest.mark.parametrize("durability", ["commit", "process"])
def test_a_killed_store_is_shown_as_its_next_opening_finds_it(open_store, store_path, durability):
    abandon(filled(open_store, durability))
    copy = copy_store(store_path, store_path.with_name("copy"))
    with unchanged(store_path), eoslog.open(store_path, read_only=True) as store:
        shown = everything_shown(store)
        assert read(store) == [b"committed"]
        assert read(store, "read_uncommitted") == [b"aborted", b"committed", b"open"]
        assert store.groups()["g"][AT].offset == 1
    with eoslog.open(copy) as store:
        assert everything_shown(store) == shown


def test_a_closed_store_is_shown_and_stays_closed(open_store, store_path):
    filled(open_store).close()
    with unchanged(store_path), eoslog.open(store_path, read_only=True) as store:
        assert store.read_only
        assert store.path == store_path
        assert read(store) == [b"committed"]
        assert [path.parent for path in paths_of(store)] == [store_path / "t-0"]
        shown = everything_shown(store)
    with eoslog.open(store_path) as store:
        assert not store.read_only
        assert everything_shown(store) == shown


def paths_of(store: eoslog.Store) -> list[Path]:
    return [Path(str(one["path"])) for one in store.partition("t", 0).segments()]


def test_topics_are_shown_without_their_list(open_store, store_path):
    store = open_store()
    store.create_topic("t", 2)
    store.producer().append("t", values=[b"plain"], partition=1)
    store.close()
    (store_path / "state" / "topics.json").unlink()
    with unchanged(store_path), eoslog.open(store_path, read_only=True) as reader:
        assert reader.topics()["t"].partitions == 2
        assert read(reader) == [b"plain"]


# What a reader has, by the names of what a store, a consumer and a partition offer; a name that is
# in none of these lists fails the test, so that no call that writes is added unseen.
SHOWN = {
    "store": """application close closed config consumer deletable_records describe_group
        describe_log_dirs describe_transaction durability explain_last_stable_offset
        find_hanging_transactions flush groups metrics partition path processes producers read_only
        remembered scan snapshot topics transactions verify""",
    "consumer": """assign assignment beginning_offsets close closed committed committed_metadata
        end_offsets group_metadata lag offsets_for_times pause paused poll poll_arrow position
        resume seek seek_to_beginning seek_to_committed seek_to_end subscription unsubscribe""",
    "partition": """aborted_transactions high_watermark last_stable_offset log_end_offset
        log_start_offset offset_for_timestamp open_transactions producers read segments size_bytes
        topic_id topic_partition verify""",
}


def test_every_call_that_writes_is_refused(open_store, store_path):
    filled(open_store).close()
    with unchanged(store_path), eoslog.open(store_path, read_only=True) as store:
        consumer, partition = store.consumer("g"), store.partition("t", 0)
        refused: dict[str, dict[str, list[Callable[[], object]]]] = {
            "store": {
                "create_topic": [lambda: store.create_topic("new")],
                "create_topics": [lambda: store.create_topics({"new": 1})],
                "alter_topic": [lambda: store.alter_topic("t", partitions=3)],
                "backup": [lambda: store.backup(store.path.with_name("copy"))],
                "delete_topic": [lambda: store.delete_topic("t")],
                "delete_records": [lambda: store.delete_records({AT: 1})],
                "alter_config": [lambda: store.alter_config({})],
                "producer": [
                    lambda: store.producer(),
                    lambda: store.producer("name"),
                    lambda: store.producer(transactional_id="x"),
                ],
                "delete_group": [lambda: store.delete_group("g")],
                "delete_offsets": [lambda: store.delete_offsets("g", [AT])],
                "abort_transaction": [lambda: store.abort_transaction("x")],
                "commit_prepared": [lambda: store.commit_prepared([])],
                "abort_prepared": [lambda: store.abort_prepared([])],
                "commit_staged": [lambda: store.commit_staged("app", 0, [])],
                "begin_run": [lambda: store.begin_run("app")],
                "sweep_run": [lambda: store.sweep_run("app", "run")],
            },
            "consumer": {
                "commit": [lambda: consumer.commit({AT: 1})],
                "subscribe": [lambda: consumer.subscribe(["t"])],
            },
            "partition": {"append_batch": [lambda: partition.append_batch(b"")]},
        }
        for what, one in (("store", store), ("consumer", consumer), ("partition", partition)):
            # Names of other clients are there to say what ours are.
            offered = {name for name in dir(one) if name[0] != "_" and hasattr(one, name)}
            assert offered == {*refused[what], *SHOWN[what].split()}
            for name, calls in refused[what].items():
                for call in calls:
                    with pytest.raises(errors.StoreReadOnlyError, match="read_only"):
                        call()
                        pytest.fail(f"{name} was not refused")
        store.flush()
        consumer.assign([AT])
        assert consumer.committed(AT) == 1
        assert store.describe_group("g").state == "Empty"


@pytest.mark.parametrize(
    "options", [{"create": True}, {"durability": "commit"}, {"durability": None}, {"config": {}}]
)
def test_nothing_else_may_be_given(store_path, options):
    with pytest.raises(ValueError, match="read_only"):
        eoslog.open(store_path, read_only=True, **options)
    assert not store_path.exists()


def test_what_is_no_store_is_refused(store_path):
    with pytest.raises(errors.NotAStoreError):
        eoslog.open(store_path, read_only=True)
    assert not store_path.exists()


def test_a_store_that_was_opened_since_is_refused_by_name(open_store, store_path):
    filled(open_store).close()
    reader = eoslog.open(store_path, read_only=True)
    consumer, partition = reader.consumer(), reader.partition("t", 0)
    consumer.assign([AT])
    open_store(None)
    for call in (
        reader.topics,
        reader.groups,
        lambda: consumer.poll(timeout=0.0),
        lambda: partition.read(0),
        lambda: partition.log_end_offset,
        lambda: reader.partition("t", 1),
    ):
        with pytest.raises(errors.StoreReopenedError):
            call()
    reader.close()


def test_one_that_a_process_opens_in_the_midst_of_the_opening_is_opened_again(
    open_store, store_path, monkeypatch
):
    filled(open_store).close()
    take_up, opened = StoreFiles._take_up, []

    def take_up_late(files):
        if files.overlay is not None and not opened:
            opened.append(open_store(None))
        take_up(files)

    monkeypatch.setattr(StoreFiles, "_take_up", take_up_late)
    with eoslog.open(store_path, read_only=True) as reader:
        opened[0].producer().append("t", 0, [b"later"])
        assert read(reader) == [b"committed", b"later"]


def test_a_store_that_a_restored_one_has_replaced_is_refused_by_name(
    open_store, store_path, tmp_path
):
    """Its topics have the same ids, and another log."""
    store = filled(open_store)
    store.backup(tmp_path / "backup")
    with eoslog.open(store_path, read_only=True) as reader:
        consumer = reader.consumer()
        consumer.assign([AT])
        consumer.poll(timeout=0.0)
        store.close()
        store_path.rename(tmp_path / "before")
        eoslog.restore(tmp_path / "backup", store_path)
        restored = open_store(None)
        restored.producer().append("t", 0, [b"another"])
        time.sleep(2 * LOOK_S)
        for call in (reader.topics, lambda: consumer.poll(timeout=0.0), reader.groups):
            with pytest.raises(errors.StoreReopenedError, match="was replaced"):
                call()
        restored.close()


def test_a_segment_that_another_store_has_put_there_since_is_not_read(open_store, store_path):
    """It was not mapped before, so no lock kept its file from being used again."""
    filled(open_store).close()
    reader = eoslog.open(store_path, read_only=True)
    log = parts_of(reader).files.partitions.find(AT)
    assert log is not None
    store = open_store(None)
    store.delete_topic("t")
    store.create_topic("t", 2)
    store.producer().append("t", 0, [b"another"])
    with pytest.raises(errors.StoreReopenedError):
        log.read(0)
    reader.close()


def test_a_power_cut_with_journals_is_refused_by_name(open_store, store_path):
    abandon(with_journal(filled(open_store, "commit", **SMALL)))
    session = store_path / "state" / "session.json"
    session.write_text(session.read_text().replace('"boot_id": "', '"boot_id": "0'))
    with unchanged(store_path), pytest.raises(errors.RecoveryNeededError, match="read_only"):
        eoslog.open(store_path, read_only=True)
    open_store(None).close()
    with eoslog.open(store_path, read_only=True) as store:
        assert read(store) == [b"committed"]


def test_a_power_cut_without_journals_is_read(open_store, store_path):
    abandon(filled(open_store, "process"))
    (store_path / "state" / "session.json").unlink()
    with unchanged(store_path), eoslog.open(store_path, read_only=True) as store:
        assert read(store) == [b"committed"]


def test_a_sign_of_life_from_another_host_counts_on_a_network_file_system(
    open_store, store_path, monkeypatch
):
    abandon(filled(open_store, "process"))
    session = store_path / "state" / "session.json"
    session.write_text(session.read_text().replace('"boot_id": "', '"boot_id": "0'))
    monkeypatch.setattr(overlay, "mount_of", lambda path: SimpleNamespace(network=True))
    with pytest.raises(errors.StoreInUseError, match="another host"):
        eoslog.open(store_path, read_only=True)
    os.utime(session, (0, 0))
    with eoslog.open(store_path, read_only=True) as store:
        assert read(store) == [b"committed"]


def test_a_damaged_last_base_offset_is_mended_in_memory_alone(open_store, store_path):
    store = open_store()
    store.create_topic("t")
    for value in (b"0", b"1", b"2"):
        store.producer().append("t", 0, [value])
    store.close()
    log = store_path / "t-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    last = len(content) // 3 * 2
    content[last : last + 8] = (9).to_bytes(8, "big")
    log.write_bytes(content)
    with unchanged(store_path), eoslog.open(store_path, read_only=True) as store:
        consumer = store.consumer()
        consumer.assign([AT])
        found = [(one.offset, one.value) for one in consumer.poll(timeout=0.0)]
        assert found == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_the_overlay_of_a_reader_that_died_is_removed_by_the_next(
    open_store, store_path, overlays, monkeypatch
):
    filled(open_store).close()

    def die() -> None:
        eoslog.open(store_path, read_only=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(AssertionError):
        in_child(die)
    assert len(list(overlays.iterdir())) == 1
    with eoslog.open(store_path, read_only=True):
        assert len(list(overlays.iterdir())) == 1
        with eoslog.open(store_path, read_only=True):
            assert len(list(overlays.iterdir())) == 2


def test_no_overlay_is_left_without_a_descriptor_to_lock_it(
    open_store, store_path, overlays, monkeypatch
):
    filled(open_store).close()

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(overlay, "UnforkedFile", refuse)
    with pytest.raises(errors.StoreError, match="Too many open files"):
        eoslog.open(store_path, read_only=True)
    assert list(overlays.iterdir()) == []


def test_no_overlay_is_left_by_an_interrupted_close(open_store, store_path, overlays, monkeypatch):
    filled(open_store).close()

    def interrupt(_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    store = eoslog.open(store_path, read_only=True)
    monkeypatch.setattr(overlay, "remove_directory", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    del store
    gc.collect()
    assert list(overlays.iterdir()) == []


def test_without_room_in_memory_the_overlay_is_where_temporary_files_are(
    open_store, store_path, tmp_path, overlays, monkeypatch
):
    filled(open_store).close()
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr(overlay, "MEMORY", tmp_path / "absent")
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    with eoslog.open(store_path, read_only=True) as store:
        assert read(store) == [b"committed"]
        assert len(list(elsewhere.iterdir())) == 1
    assert list(elsewhere.iterdir()) == []


def read_partition(store_path: Path) -> None:
    with eoslog.open(store_path, read_only=True) as store:
        store.partition("t", 0)


@pytest.mark.parametrize("damaged", ["topics.json", "t-0"])
def test_errors_name_the_store_and_not_the_overlay(open_store, store_path, overlays, damaged):
    filled(open_store).close()
    store_path = copy_store(store_path, store_path.with_name("copy"))
    if damaged == "t-0":
        shutil.rmtree(store_path / "t-0")
    else:
        (store_path / "state" / damaged).write_bytes(b"no list")
    with pytest.raises(errors.CorruptRecordError, match=str(store_path)) as raised:
        read_partition(store_path)
    assert str(overlays) not in str(raised.value)
    assert raised.value.path.startswith(str(store_path))


def test_a_verification_names_the_store(open_store, store_path):
    filled(open_store).close()
    log = store_path / "t-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)
    with unchanged(store_path), eoslog.open(store_path, read_only=True) as store:
        found = store.verify()
    assert [one["path"] for one in found] == [str(log)]


def test_a_live_store_is_verified_and_no_lock_of_it_is_taken(open_store, store_path):
    store = filled(open_store)
    store.flush()
    locks = list((store_path / "state").glob("*.lock"))

    def verify() -> list[object]:
        with eoslog.open(store_path, read_only=True) as reader:
            return [one["path"] for one in reader.verify()]

    with unchanged(store_path), ExitStack() as held:
        for path in locks:
            held.enter_context(file_locked(path, wait=False))
        assert in_child(verify) == []
    log = store_path / "t-0" / f"{0:020d}.log"
    with log.open("r+b") as file:
        file.seek(70)
        byte = file.read(1)[0]
        file.seek(70)
        file.write(bytes([byte ^ 1]))
    assert in_child(verify) == [str(log)]


NOBODY = 65534


@pytest.fixture
def shared_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that every user reaches, with one in it that every user may write to."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        place = Path(name)
        place.chmod(0o755)
        memory = place / "memory"
        memory.mkdir()
        memory.chmod(0o1777)
        monkeypatch.setattr(overlay, "MEMORY", memory)
        yield place


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("is_readable", [True, False])
def test_another_user_reads_what_the_modes_let_him(
    open_store, store_path, shared_place, is_readable
):
    abandon(filled(open_store))
    path = copy_store(store_path, shared_place / "store")
    with eoslog.open(store_path, read_only=True) as store:
        expected = everything_shown(store)  # What it loads is loaded then.
    for one in [path, *path.rglob("*")] if is_readable else []:
        one.chmod(0o755 if one.is_dir() else 0o644)

    def read_it() -> object:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            with eoslog.open(path, read_only=True) as store:
                return everything_shown(store) == expected
        except errors.StoreError as error:
            return type(error).__name__

    with unchanged(path):
        assert in_child(read_it) == (True if is_readable else "StoreReadOnlyError")
    assert list((shared_place / "memory").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_read_only_mount_is_read(open_store, store_path, tmp_path):
    abandon(filled(open_store))
    mounted = tmp_path / "mounted"
    mounted.mkdir()

    def read_it() -> bool:
        for options in (["--bind", str(store_path)], ["-o", "remount,ro,bind"]):
            done = subprocess.run(["mount", *options, str(mounted)], capture_output=True)
            if done.returncode:
                return False
        with pytest.raises(errors.StoreReadOnlyError):
            eoslog.open(mounted)
        with eoslog.open(mounted, read_only=True) as store:
            assert read(store) == [b"committed"]
        return True

    try:
        if not in_child(read_it):
            pytest.skip("nothing can be mounted here")
    finally:
        subprocess.run(["umount", str(mounted)], capture_output=True, check=False)


def test_what_was_read_stays_right_while_another_process_deletes_it(open_store, store_path):
    """Its file is held, and so is not used again for other records."""
    pytest.importorskip("pyarrow")
    filled(open_store).close()
    with eoslog.open(store_path, read_only=True) as reader:
        consumer = reader.consumer()
        consumer.assign([AT])
        batch = consumer.poll_arrow(timeout=0.0)
        store = open_store(None)
        store.delete_topic("t")
        store.create_topic("t", 1, config={"segment.bytes": 4096})
        for _ in range(20):
            store.producer().append("t", 0, [b"x" * 900] * 4)
        assert batch.column("value").to_pylist() == [b"committed"]
        with pytest.raises(errors.StoreReopenedError):
            consumer.poll_arrow(timeout=0.0)
    assert batch.column("value").to_pylist() == [b"committed"]
