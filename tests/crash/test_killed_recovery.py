"""Recovery itself is killed, at any moment, again and again: what it leaves is recovered too."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from harness.fork import Fork
from partition_files import PartitionFiles, all_records
from reference_model import batch_codec as codec
from store_copies import copy_store

pytestmark = pytest.mark.crash

PRODUCERS = 3
CONFIG = {"segment.bytes": 3000, "index.interval.bytes": 200, "eoslog.spare.segments": 1}


def filled(root: Path, batches: int) -> tuple[PartitionFiles, list[bytes]]:
    """Many small segments of three producers, left as a kill leaves them, with a torn tail."""
    files = PartitionFiles(root, CONFIG)
    log = files.open()
    sent = []
    for index in range(batches):
        sent.append(
            codec.simple_batch(
                [b"%d" % index] * 3,
                producer_id=index % PRODUCERS,
                producer_epoch=0,
                base_sequence=index // PRODUCERS * 3,
            )
        )
        log.append_batch(sent[-1])
    last = log.active_base_offset
    files.close(clean=False)
    with files.path(last).open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"\x00\x00\x00torn" * 20)
    return files, sent


def recover(files: PartitionFiles, clean_close: bool) -> None:
    files.open(clean=False)
    if clean_close:
        files.close()


def kill_recoveries(files: PartitionFiles, kills: int, noise: random.Random) -> int:
    """Kill so many recoveries after a time that is drawn; how many were still at it."""
    killed = 0
    longest = 0.02
    for number in range(kills):
        started = time.monotonic()
        child = Fork(lambda _, close=number % 3 == 0: recover(files, close))
        time.sleep(noise.random() * longest)
        if child.kill():
            killed += 1
        else:
            longest = max(0.002, min(longest, time.monotonic() - started))
    return killed


def check(files: PartitionFiles, sent: list[bytes]) -> None:
    log = files.open(clean=False)
    values = [record.value for record in all_records(log)]
    assert values == [b"%d" % index for index in range(len(sent)) for _ in range(3)]
    assert [p for p in log.verify() if p["path"].endswith(".log")] == []
    for data in sent[-PRODUCERS:]:
        assert log.append_batch(data).duplicate, "a producer was forgotten"
    files.close()


def run(root: Path, kills: int, seed: int) -> int:
    files, sent = filled(root / "live", batches=400)
    noise = random.Random(seed)
    killed = kill_recoveries(files, kills, noise)
    copied = PartitionFiles(root / "copy", CONFIG)
    copy_store(files.root, copied.root, dirs_exist_ok=True)
    check(copied, sent)
    killed += kill_recoveries(files, kills, noise)
    check(files, sent)
    return killed


def test_a_killed_recovery_is_repeated(tmp_path):
    assert run(tmp_path, kills=25, seed=1) > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_killed_recoveries(tmp_path, seed):
    assert run(tmp_path, kills=200, seed=seed) > 0


def test_an_unclean_stop_right_after_an_unclean_stop(tmp_path):
    """Recovered, closed uncleanly without an append, and recovered again."""
    files, sent = filled(tmp_path, batches=50)
    for _ in range(3):
        log = files.open(clean=False)
        assert log.log_end_offset == 3 * len(sent)
        files.close(clean=False)
    check(files, sent)
