"""A store that is only read while sessions of others begin and end, and topics are made again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from c_library import built_library
from read_only_stores import everything_shown

import eoslog
from eoslog import TopicPartition
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.store.store import engine_of

AT = TopicPartition("t", 0)
# Which process has the partition open as the reader opens it.
OPENED = pytest.mark.parametrize("is_followed", [True, False], ids=["followed", "as left"])


def append(store: eoslog.Store, *values: bytes) -> None:
    """Append records to the topic, each in a segment of its own."""
    for value in values:
        with store.producer() as producer:
            producer.append("t", 0, [value])
        engine_of(store).partition("t", 0).roll()


def made(path: Path, *, is_open: bool) -> eoslog.Store:
    """An open store with a partition of 10 records from 4 on, opened in its session or before."""
    store = eoslog.open(path, create=True, durability="process")
    store.create_topics({"t": 1, "other": 1})
    append(store, *(b"old %d" % number for number in range(10)))
    store.delete_records({AT: 4})
    if not is_open:
        store.close()
        store = eoslog.open(path)
    return store


@contextmanager
def next_session(path: Path) -> Iterator[eoslog.Store]:
    """A session of which no process has the topic's partition open."""
    with eoslog.open(path) as store, store.producer() as producer:
        producer.append("other", 0, [b"x"])
        yield store


def tail(store: eoslog.Store) -> eoslog.Consumer:
    consumer = store.consumer()
    consumer.assign([AT])
    return consumer


def read_up_to(consumer: eoslog.Consumer, end: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    deadline_s = time.monotonic() + 20
    while consumer.position(AT) < end:
        found += [one.value for one in consumer.poll(0.05)]
        assert time.monotonic() < deadline_s, (found, consumer.position(AT))
    return found


@OPENED
@pytest.mark.parametrize("is_opened_before", [True, False])
def test_a_session_that_no_look_saw(tmp_path, is_followed, is_opened_before):
    """Of what it wrote nothing is missing, though no process has it open."""
    path = tmp_path / "store"
    writer = made(path, is_open=is_followed)
    with eoslog.open(path, read_only=True) as reader:
        if is_opened_before:
            consumer, held = tail(reader), reader.partition("t", 0)
            assert read_up_to(consumer, 10) == [b"old %d" % number for number in range(4, 10)]
        writer.close()
        with eoslog.open(path) as writer:
            append(writer, b"new 0", b"new 1")
            writer.delete_records({AT: 6})
        with next_session(path) as writer:
            if is_opened_before:
                assert read_up_to(consumer, 12) == [b"new 0", b"new 1"]
                assert (held.log_start_offset, held.log_end_offset) == (6, 12)
            shown = everything_shown(reader)
            assert shown == everything_shown(writer)
            assert shown["logs"]["t-0"]["start"] == 6


@OPENED
@pytest.mark.parametrize("is_new_opened", [True, False])
def test_a_topic_that_was_made_again_is_another_one(tmp_path, is_followed, is_new_opened):
    path = tmp_path / "store"
    writer = made(path, is_open=is_followed)
    with eoslog.open(path, read_only=True) as reader:
        consumer, held = tail(reader), reader.partition("t", 0)
        assert held.log_start_offset == 4
        writer.close()
        with eoslog.open(path) as writer:
            writer.delete_topic("t")
            writer.create_topic("t")
            append(writer, *(b"other",) * 12)
        with next_session(path) as writer:
            if is_new_opened:
                assert writer.partition("t", 0).log_end_offset == 12
            with pytest.raises(LogClosedError, match="deleted"):
                held.read(4)
            with pytest.raises(UnknownTopicOrPartitionError, match="deleted"):
                consumer.poll(0.0)
            new = reader.partition("t", 0)
            assert (new.log_start_offset, new.log_end_offset) == (0, 12)
            assert read_up_to(tail(reader), 12) == [b"other"] * 12


def test_a_file_that_was_only_touched_is_still_the_topics(tmp_path):
    path = tmp_path / "store"
    with made(path, is_open=False), eoslog.open(path, read_only=True) as reader:
        held = reader.partition("t", 0)
        (path / "t-0" / "partition.metadata").chmod(0o640)
        assert read_up_to(tail(reader), 10) == [b"old %d" % number for number in range(4, 10)]
        assert held.log_end_offset == 10


READER = """
import ctypes, os, sys
import eoslog
from eoslog.store.store import parts_of
path, tell_fd, wait_fd = sys.argv[1:]
at = eoslog.TopicPartition("t", 0)
with eoslog.open(path, read_only=True) as store:
    consumer = store.consumer()
    consumer.assign([at])
    directory = parts_of(store).files.partitions.find(at).log.path
    name = ctypes.create_string_buffer(os.fsencode(f"{directory}/{4:020d}.log"))
    ctypes.CDLL(None).stop_at_open(name, int(tell_fd), int(wait_fd))
    try:
        print([record.value for record in consumer.poll(0)])
    except eoslog.errors.UnknownTopicOrPartitionError as error:
        print(error)
"""


@OPENED
def test_a_file_that_is_opened_late_is_not_another_topics(tmp_path, is_followed):
    """The reader stands still between its look at the store and the opening of a segment's file."""
    path = tmp_path / "store"
    library = built_library(Path(__file__).with_name("stop_at_open.c"), tmp_path)
    writer = made(path, is_open=is_followed)
    told, tell = os.pipe()
    waits, wake = os.pipe()
    words = (sys.executable, "-c", READER, str(path), str(tell), str(waits))
    environment = os.environ | {"LD_PRELOAD": str(library)}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=environment, pass_fds=(tell, waits)
    ) as reader:
        for one in (tell, waits):
            os.close(one)
        assert os.read(told, 1)
        writer.close()
        with eoslog.open(path) as writer:
            writer.delete_topic("t")
            writer.create_topic("t")
            append(writer, *(b"other",) * 12)
            os.write(wake, b"x")
            assert reader.stdout is not None
            assert reader.stdout.read() == "the topic was deleted: t-0 was deleted\n"
    for one in (told, wake):
        os.close(one)


def test_a_segment_that_goes_before_its_file_was_opened(tmp_path):
    """Of a partition that no process had open: the reader goes on where the log begins by now."""
    path = tmp_path / "store"
    with made(path, is_open=False) as writer, eoslog.open(path, read_only=True) as reader:
        consumer = tail(reader)
        assert [one.value for one in consumer.poll(0.0, max_records=1)] == [b"old 4"]
        writer.delete_records({AT: 8})
        assert [one.value for one in consumer.poll(0.0, max_records=1)] == [b"old 8"]
        assert read_up_to(consumer, 10) == [b"old 9"]


def test_files_that_others_deleted_are_given_back(tmp_path):
    """A reader that keeps up would otherwise hold all that it ever read, and their room."""
    path = tmp_path / "store"
    with made(path, is_open=True) as writer, eoslog.open(path, read_only=True) as reader:
        consumer = tail(reader)
        for number in range(10, 30):
            append(writer, b"new")
            read_up_to(consumer, number + 1)
            writer.delete_records({AT: number})
        maps = Path("/proc/self/maps").read_text().splitlines()
        held = {line.split()[4] for line in maps if "t-0/" in line and "(deleted)" in line}
        assert len(held) < 5  # And some of the writer, which its background thread gives back.
