"""An interrupt (Ctrl-C) at any step leaves no file open."""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from crash.interrupted_steps import Steps

from eoslog.bindings.file_descriptor import (
    FileDescriptor,
    open_regular,
    sync_file_system,
    sync_path,
)
from eoslog.bindings.record_batch import BatchEncoder
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StoreError
from eoslog.fs import atomic_file
from eoslog.groups.coordinator import MemberHeartbeats
from eoslog.session.process_slots import ProcessSlots
from eoslog.staging.attempt_files import AttemptFiles

BATCH = BatchEncoder().encode_columns([b"value"], timestamp_ms=1)


def open_paths(below):
    """What the descriptors of this process lead to, of what is below a directory."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return sorted(one for one in found if one.startswith(str(below)))


def slots(tmp_path, step):
    """A process takes a slot, and looks at that of another one."""
    state = tmp_path / f"state-{step}"
    (state / "processes").mkdir(parents=True)
    (state / "processes" / ("ab" * 16)).touch()
    slots = None
    try:
        slots = ProcessSlots(state, b"s" * 16)
        slots.others()
    finally:
        if slots is not None:
            slots.release()


def staged(tmp_path, step):
    files = AttemptFiles(tmp_path / f"attempt-{step}", tmp_path, sync=True)
    try:
        one = files.file_for(TopicPartition("t", 0), 1, 61, 1 << 20)
        files.write(one, BATCH, 1)
        files.close()
    finally:
        files.close_descriptors()


def heartbeats(tmp_path, _):
    """A consumer becomes a member, and is none any more."""
    beats = MemberHeartbeats(tmp_path / "state")
    try:
        beats.begin("member")
        beats.beat("member")
    finally:
        beats.end("member")


CALLS = {
    "write_atomically": lambda path, _: atomic_file.write_atomically(path / "file", b"new"),
    "read_if_there": lambda path, _: atomic_file.read_if_there(path / "file"),
    "sync_directory": lambda path, _: atomic_file.sync_directory(path),
    "sync_file": lambda path, _: atomic_file.sync_file(path / "file"),
    "process slots": slots,
    "heartbeats": heartbeats,
    "staged files": staged,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_before_any_step_leaves_no_file_open(call, tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    call(tmp_path, 0)
    before, steps, step = open_paths(tmp_path), Steps(), 1
    while steps.interrupt(step, partial(call, tmp_path, step)):
        assert open_paths(tmp_path) == before, steps.last
        step += 1
    assert step > 3


def test_a_descriptor_is_open_within_its_block(tmp_path):
    with FileDescriptor(tmp_path / "file", os.O_WRONLY | os.O_CREAT) as descriptor:
        os.write(descriptor, b"abc")
        assert not os.get_inheritable(descriptor)
    assert (tmp_path / "file").read_bytes() == b"abc"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_closed_descriptor_has_no_number(tmp_path):
    file = FileDescriptor(tmp_path, os.O_RDONLY)
    os.fstat(file.fileno())
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.fileno()


def test_what_is_not_there_is_an_os_error_and_a_store_s_in_a_store(tmp_path):
    with pytest.raises(FileNotFoundError):
        FileDescriptor(tmp_path / "none", os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        sync_path(tmp_path / "none", os.O_RDONLY)
    with pytest.raises(StoreError, match="none"):
        atomic_file.sync_file(tmp_path / "none")


def test_a_file_system_is_synced_by_any_open_file_of_it(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    with FileDescriptor(tmp_path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        tells = sync_file_system(descriptor)
    if tells:  # Before Linux 5.8 it does not, and nothing is synced.
        with pytest.raises(OSError, match="Bad file descriptor"):
            sync_file_system(-1)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(OSError, match=r"not a regular file.*pipe"):
        open_regular(tmp_path / "pipe", os.O_RDONLY)
    assert len([*Path("/proc/self/fd").iterdir()]) == before
