"""The small files of a store: replaced as a whole, read back, damage named."""

import os

import pytest
from transaction_files import full_disk

from eoslog.bindings.record_batch import crc32c
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, NotAStoreError, StoreVersionError
from eoslog.fs.atomic_file import give_room_back, reserve_room, write_atomically
from eoslog.fs.checkpoint_file import read_checkpoint, write_checkpoints
from eoslog.fs.identity_files import (
    MetaProperties,
    id_bytes,
    new_id,
    read_meta_properties,
    read_partition_metadata,
    write_meta_properties,
    write_partition_metadata,
)
from eoslog.storage.clean_close import (
    UNCLEAN,
    LastStop,
    forget_last_stop,
    read_last_stop,
    write_clean_close,
)

T0, U3 = TopicPartition("t", 0), TopicPartition("u-1", 3)


def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_atomically(path, b"old")
    write_atomically(path, b"new", sync=False)
    assert path.read_bytes() == b"new"

    def refuse(*_arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("eoslog.fs.atomic_file.os.fsync", refuse)
    with pytest.raises(Exception, match="errno 5"):
        write_atomically(path, b"newer")
    assert path.read_bytes() == b"new"


def test_what_is_reserved_for_a_file_is_written_over_and_not_made_again(tmp_path, monkeypatch):
    """A full disk has no other blocks for it."""
    path, aside = tmp_path / "x", tmp_path / "x.tmp"
    write_atomically(path, b"old")
    reserve_room(path, 20_000)
    reserved = aside.stat()
    assert reserved.st_blocks * 512 >= 20_000
    at_writes = []

    def write(descriptor, data):
        at_writes.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_blocks))
        return os.pwrite(descriptor, data[:15_000], 15_000 * (len(at_writes) - 1))

    monkeypatch.setattr("eoslog.fs.atomic_file.os.write", write)
    write_atomically(path, b"new" * 6000)
    assert at_writes == [(reserved.st_ino, reserved.st_blocks)] * 2
    assert path.read_bytes() == b"new" * 6000
    assert not aside.exists()
    give_room_back(path)


def test_a_rename_that_a_power_cut_left_half_done_is_not_written_through(tmp_path, monkeypatch):
    path, aside = tmp_path / "x", tmp_path / "x.tmp"
    write_atomically(path, b"old")
    aside.hardlink_to(path)
    reserve_room(path, 20_000)
    assert path.read_bytes() == b"old"
    aside.unlink()
    aside.hardlink_to(path)
    monkeypatch.setattr("eoslog.fs.atomic_file.put_in_place", lambda _: None)
    write_atomically(path, b"new")
    assert (path.read_bytes(), aside.read_bytes()) == (b"old", b"new")


def test_room_that_is_not_there_is_not_reserved(tmp_path):
    with full_disk():
        reserve_room(tmp_path / "x", 1 << 20)
    write_atomically(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"


def test_checkpoints_are_kafkas_text(tmp_path):
    path = tmp_path / "c"
    assert read_checkpoint(path) == {}
    write_checkpoints({path: {U3: 7, T0: 1 << 62}})
    entries = f"0\n3\nt 0 {1 << 62}\nu-1 3 7\n"
    summed = crc32c(f"c\n{entries}".encode())
    assert path.read_text() == f"{entries}#crc32c# 0 {summed}\n"
    assert read_checkpoint(path) == {T0: 1 << 62, U3: 7}


def test_a_checkpoint_of_kafkas_is_believed(tmp_path):
    (tmp_path / "c").write_text("0\n2\nt 0 5\nu-1 3 7\n")
    assert read_checkpoint(tmp_path / "c") == {T0: 5, U3: 7}


@pytest.mark.parametrize("offsets", [{}, {T0: 0}, {T0: 12, U3: 1 << 40}], ids=len)
def test_a_bit_that_flips_in_a_checkpoint_is_noticed(tmp_path, offsets):
    path = tmp_path / "c"
    write_checkpoints({path: offsets})
    content = path.read_bytes()
    harmless = 0
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert read_checkpoint(path) == offsets, bytes(flipped)
            harmless += 1
        except CorruptRecordError:
            pass
    assert harmless <= 2, "of the last line's end"


def test_a_checkpoint_in_the_place_of_another_is_noticed(tmp_path):
    write_checkpoints({tmp_path / "c": {T0: 5}})
    (tmp_path / "c").rename(tmp_path / "d")
    with pytest.raises(CorruptRecordError, match="checksum"):
        read_checkpoint(tmp_path / "d")


@pytest.mark.parametrize(
    "text",
    ["1\n0\n", "0\n", "0\n2\nt 0 1\n", "0\n1\nt 0\n", "0\n1\nt 0 -1\n", "x", "0\n1\nt zero 1\n"],
)
def test_wrong_checkpoints_are_named(tmp_path, text):
    (tmp_path / "c").write_text(text)
    with pytest.raises(CorruptRecordError, match="not a checkpoint"):
        read_checkpoint(tmp_path / "c")


def test_the_trace_of_a_clean_close_is_read_once(tmp_path):
    marker, unrecovered = tmp_path / "marker", tmp_path / "unrecovered"
    assert read_last_stop(marker, unrecovered) == UNCLEAN
    write_clean_close(marker, unrecovered, "mark", frozenset())
    assert not unrecovered.exists()
    assert read_last_stop(marker, unrecovered) == LastStop("mark", frozenset())
    forget_last_stop(marker, unrecovered)
    assert read_last_stop(marker, unrecovered) == UNCLEAN
    write_clean_close(marker, unrecovered, "mark", frozenset({U3}))
    assert not marker.exists()
    assert read_last_stop(marker, unrecovered) == LastStop("mark", frozenset({U3}))
    forget_last_stop(marker, unrecovered)
    forget_last_stop(marker, unrecovered)
    assert read_last_stop(marker, unrecovered) == UNCLEAN


@pytest.mark.parametrize("content", [b"", b"anything", b'{"version":0,"brokerEpoch":4}', b"[]"])
def test_the_markers_existence_alone_is_clean(tmp_path, content):
    (tmp_path / "marker").write_bytes(content)
    assert read_last_stop(tmp_path / "marker", tmp_path / "u") == LastStop("", frozenset())


@pytest.mark.parametrize("imported", [False, True])
def test_identity_comes_back(tmp_path, imported):
    written = MetaProperties.new()._replace(imported=imported)
    write_meta_properties(tmp_path, written)
    assert read_meta_properties(tmp_path) == written
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert {"version=1", "node.id=0", "eoslog.store.version=1"} <= set(lines)
    assert lines[0].startswith("#")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, NotAStoreError),
        ("", NotAStoreError),
        ("version=1\n", NotAStoreError),
        ("eoslog.store.version=one\n", NotAStoreError),
        ("eoslog.store.version=0\n", NotAStoreError),
        ("eoslog.store.version=1\nnode.id=x\n", NotAStoreError),
        ("eoslog.store.version=2\n", StoreVersionError),
    ],
)
def test_other_identities_are_refused(tmp_path, text, error):
    if text is not None:
        (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(error):
        read_meta_properties(tmp_path)


def test_bytes_that_are_no_text_are_no_identity(tmp_path):
    (tmp_path / "meta.properties").write_bytes(b"\xff\xfe")
    with pytest.raises(NotAStoreError):
        read_meta_properties(tmp_path)


def test_ids_are_22_characters_of_16_bytes():
    made = {new_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(one) == 22 and len(id_bytes(one)) == 16 for one in made)
    assert not any(one.startswith("-") for one in made)
    for wrong in ("", "x", "A" * 22, "!" * 22, new_id() + "A", new_id()[:-1]):
        with pytest.raises(ValueError, match="id"):
            id_bytes(wrong)


def test_partition_metadata_ties_a_directory_to_its_topic(tmp_path):
    assert read_partition_metadata(tmp_path) is None
    topic_id = new_id()
    write_partition_metadata(tmp_path, topic_id)
    assert read_partition_metadata(tmp_path) == topic_id
    for text in ("", "version: 1\ntopic_id: x", "version: 0", f"version: 0\ntopic_id: {'A' * 22}"):
        (tmp_path / "partition.metadata").write_text(text)
        with pytest.raises(CorruptRecordError, match=r"partition\.metadata"):
            read_partition_metadata(tmp_path)
    (tmp_path / "partition.metadata").write_bytes(b"\xff")
    with pytest.raises(CorruptRecordError, match="UTF-8"):
        read_partition_metadata(tmp_path)


@pytest.mark.parametrize(
    "wrong", ["", "t", "t-", "-1", "t-01", "t-x", "t-1x", "t-\u0661", "t-" + "9" * 5000]
)
def test_names_that_are_no_partitions(wrong):
    with pytest.raises(ValueError, match="-") as failed:
        TopicPartition.parse(wrong)
    assert len(str(failed.value)) < 200


def test_a_partition_is_its_directorys_name():
    assert str(U3) == "u-1-3"
    assert TopicPartition.parse("u-1-3") == U3
