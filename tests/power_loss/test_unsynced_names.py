"""A process dies before it synced the name of a segment: another one has the name synced."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest
from other_process import OtherProcess
from partition_files import TOPIC, PartitionFiles
from power_loss import disk_trace
from power_loss.disk_trace import SYNCED
from reference_model import batch_codec as codec
from staged_jobs import APP

import eoslog

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("work", ["recovery", "adoption"])
def test_a_name_that_a_dead_process_did_not_sync_is_synced_with_the_next_records(
    tmp_path: Path, work: str
):
    """Else a power cut takes a file whose content was synced, and with it what was promised."""
    events = disk_trace.events_of("test_unsynced_names", tmp_path, work)
    synced = [one.first.decode() for one in events if one.kind == SYNCED and one.number == 1]
    assert synced == [f"{TOPIC}-0"]


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


def adoption(root: str) -> None:
    """The empty segment's file is closed when a staged one takes its name."""
    path = Path(root, "store")
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, partitions=64)
    code = f"""
import eoslog
from eoslog.staging import pending_jobs, staged_job
from eoslog.staging.staged_writer import StagedWriter
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
    with OtherProcess(code) as other:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, allowed[1]))
        store = eoslog.open(path)
        for number in range(64):
            store.partition(TOPIC, number).flush()
        other.tell()
        assert other.hear() == "adopted"
        other.kill()
        partition = store.partition(TOPIC, 0)
        assert partition.log_end_offset == 1
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
        disk_trace.begin(path, Path(root, "trace"))
        partition.flush()
        disk_trace.end()
        os._exit(0)


if __name__ == "__main__":
    {"recovery": recovery, "adoption": adoption}[sys.argv[2]](sys.argv[1])
