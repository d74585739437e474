"""A process dies before it synced the name of a segment, or cannot: it is synced later."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.crew import started
from partition_files import TOPIC, PartitionFiles
from power_loss import disk_trace
from power_loss.disk_trace import BEGUN, CREATED, SYNCED
from reference_model import batch_codec as codec
from staged_jobs import APP

import eoslog
from eoslog.staging import job as staged_job
from eoslog.staging.writer import StagedWriter
from eoslog.store.store import engine_of, parts_of
from eoslog.testing import Faults

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("work", ["recovery", "adoption"])
def test_a_name_that_a_dead_process_did_not_sync_is_synced_with_the_next_records(
    tmp_path: Path, events_of, work: str
):
    """Else a power cut takes a file whose content was synced, and with it what was promised."""
    assert synced_directories(events_of("test_unsynced_names", tmp_path, work)) == [f"{TOPIC}-0"]


def test_the_name_of_a_first_file_is_synced_although_that_failed_before(tmp_path, events_of):
    events = events_of("test_unsynced_names", tmp_path, "first_file")
    assert f"{TOPIC}-0" in synced_directories(events)


def synced_directories(events: list[disk_trace.Event]) -> list[str]:
    return [one.first.decode() for one in events if one.kind == SYNCED and one.number == 1]


def recovery(root: str) -> None:
    """The trace is that of the first flush after the recovery."""
    files = PartitionFiles(Path(root, "log"))
    log = files.open()
    log.append_batch(codec.simple_batch([b"first"]))
    log.flush()
    log.roll()
    log.append_batch(codec.simple_batch([b"second"]))
    files.close(clean=False)
    log = files.open(clean=False)
    log.append_batch(codec.simple_batch([b"third"]))
    disk_trace.begin(files.root, Path(root, "trace"))
    log.flush()
    disk_trace.end()


def first_file(root: str) -> None:
    """The sync of its name failed, and the append is made again."""
    path = Path(root, "store")
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC)
    store = eoslog.open(path)
    parts_of(store).checkpointer.stop()
    producer = store.producer()
    with Faults(store).fail_sync(TOPIC), pytest.raises(eoslog.errors.StoreFailedError):
        producer.append(TOPIC, 0, [b"first"])
    disk_trace.begin(path, Path(root, "trace"))
    producer.append(TOPIC, 0, [b"first"])
    producer.flush()
    disk_trace.end()
    assert engine_of(store).partition(TOPIC, 0).log_end_offset == 1
    os._exit(0)


def adoption(root: str) -> None:
    """The empty segment's file is closed when a staged one takes its name."""
    path = Path(root, "store")
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, partitions=64)
    code = f"""
import eoslog
from eoslog.staging import pending_jobs, job as staged_job
from eoslog.staging.writer import StagedWriter
staged_job.WHOLE_FILE_BYTES_MIN = 0
adopt_files = pending_jobs.adopt_files
pending_jobs.adopt_files = lambda *given, **named: (
    adopt_files(*given, **named | {{"sync": False}}), say("adopted"), wait())
writer = StagedWriter({str(path)!r}, {APP!r}, "run", "0", partitions={{{TOPIC!r}: 64}})
writer.append({TOPIC!r}, 0, [b"staged"])
message = writer.close()
with eoslog.open({str(path)!r}) as store:
    wait()
    store.commit_staged({APP!r}, 0, [message])
"""
    with started(code) as other:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, allowed[1]))
        store = eoslog.open(path, config={"eoslog.open.files.raise": False})
        # Else it may complete the job itself, and sync what that takes.
        parts_of(store).checkpointer.stop()
        for number in range(64):
            engine_of(store).partition(TOPIC, number).flush()
        other.tell()
        other.hear("adopted")
        other.kill()
        partition = engine_of(store).partition(TOPIC, 0)
        assert partition.log_end_offset == 1
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
        disk_trace.begin(path, Path(root, "trace"))
        partition.flush()
        disk_trace.end()
        os._exit(0)


@pytest.mark.parametrize("work", ["roll", "job"])
@pytest.mark.parametrize("state", ["new", "checkpointed", "process"])
def test_a_page_has_its_name_on_disk_before_a_second_segment_comes(
    tmp_path: Path, events_of, work: str, state: str
):
    """Else a power cut leaves a log that nothing knows: it passes for one that was moved here, and
    what is lost between two of its segments for what a compaction took.
    """
    events = events_of("test_unsynced_names", tmp_path, f"{work}:{state}")
    events = events[[one.kind for one in events].index(BEGUN) :]
    named = [
        at
        for at, one in enumerate(events)
        if one.kind == SYNCED and one.number == 1 and one.first == b"state/control"
    ]
    made = [
        at
        for at, one in enumerate(events)
        if one.kind == CREATED
        and one.first.startswith(f"{TOPIC}-0/".encode())
        and one.first.endswith(b".log")
    ]
    assert len(made) > 1 if work == "roll" else made
    assert len(named) == (state == "new")
    assert all(at < made[0] for at in named)


def second_segment(root: str, work: str, state: str) -> None:
    """The trace is that of what comes after the first segment's records."""
    path = Path(root, "store")
    durability: Any = "process" if state == "process" else "commit"
    config = {"segment.bytes": 2000, "max.message.bytes": 1500}
    with eoslog.open(path, create=True, durability=durability) as store:
        store.create_topic(TOPIC, config=config)
        if state == "checkpointed":
            store.producer().append(TOPIC, 0, [b"first" * 200])
    store = eoslog.open(path, durability=durability)
    store.producer().append(TOPIC, 0, [b"second" * 200])
    if work == "job":
        staged_job.WHOLE_FILE_BYTES_MIN = 0
        writer = StagedWriter(str(path), APP, "run", "0", partitions={TOPIC: 1})
        writer.append(TOPIC, 0, [b"staged" * 200])
        message = writer.close()
    disk_trace.begin(path, Path(root, "trace"))
    if work == "job":
        store.commit_staged(APP, 0, [message])
    else:
        for _ in range(3):
            store.producer().append(TOPIC, 0, [b"third" * 200])
    disk_trace.end()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[2] in ("recovery", "adoption", "first_file"):
        globals()[sys.argv[2]](sys.argv[1])
    else:
        second_segment(sys.argv[1], *sys.argv[2].split(":"))
