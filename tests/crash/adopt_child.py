"""Jobs whose files become segments, by a process that dies before each call in turn.

`python -m crash.adopt_child FOLDER STEP FIRST DURABILITY MODE`: every STEP-th call from FIRST on.
MODE is `alone`, or `beside`: another process, this one, has the store open all the time.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import staged_jobs
from crash.numbered_calls import arm, count, dies_before
from staged_jobs import APP, PARTITIONS, TOPIC, stage_job, visible_numbers

import eoslog
from eoslog.common.durability import Durability
from eoslog.staging import staged_job
from eoslog.store.store import parts_of

FIRST_JOB = range(60)
SECOND_JOB = range(60, 120)
PLAIN = range(200, 203)
# The background thread works at times of its own; here only the calls of the program do.
QUIET = {"eoslog.checkpoint.interval.ms": 3_600_000, "log.initial.task.delay.ms": 3_600_000}


def opened(path: Path, durability: Durability | None) -> eoslog.Store:
    return eoslog.open(path, durability=durability, config=QUIET)


def jobs(path: Path, durability: Durability) -> None:
    """Two jobs, and plain records between them: into empty segments, and behind others."""
    with opened(path, durability) as store:
        for version, numbers in enumerate((FIRST_JOB, SECOND_JOB)):
            messages = stage_job(path, f"run-{version}", numbers, durability=durability)
            assert store.commit_staged(APP, version, messages).committed
            if version == 0:
                send_plain(store)


def send_plain(store: eoslog.Store) -> None:
    with store.producer() as producer:
        for number in PLAIN:
            producer.send(TOPIC, value=staged_jobs.value_of(number), key=staged_jobs.key_of(number))


def settle(store: eoslog.Store) -> None:
    """Have what the dead process left undone done; the store's own thread may be at it just now."""
    for _ in range(1000):
        parts_of(store).staged.recover_dead_peers()
        if not parts_of(store).staged.pending.undone.any:
            return
        time.sleep(0.01)


def check(path: Path, store: eoslog.Store) -> None:
    """Each job is in or it is not; and whatever is done next, it is in once."""
    settle(store)
    found = flat(visible_numbers(store))
    state = store.application(APP)
    version = -1 if state is None else state.version
    assert state is None or state.state == "complete", state
    plain = [number for number in found if number in PLAIN]
    expected = [*(FIRST_JOB if version >= 0 else ()), *(SECOND_JOB if version >= 1 else ()), *plain]
    assert sorted(found) == sorted(expected), (version, sorted(found))
    assert len(set(plain)) == len(plain)
    assert version < 1 or len(plain) == len(PLAIN)
    for number, numbers in enumerate((FIRST_JOB, SECOND_JOB)):
        messages = stage_job(path, f"again-{number}", numbers, tasks=3)
        assert store.commit_staged(APP, number, messages).committed == (version < number)
    for number in range(2):
        store.sweep_run(APP, f"run-{number}")  # The driver that died, if it decided nothing.
    parts_of(store).staged.sweep()
    assert sorted(flat(visible_numbers(store))) == sorted([*FIRST_JOB, *SECOND_JOB, *plain])
    assert store.verify() == []
    send_plain(store)
    assert sorted(flat(visible_numbers(store))) == sorted([*FIRST_JOB, *SECOND_JOB, *plain, *PLAIN])


def check_files(path: Path) -> None:
    """No segment has a second name by now, and no file is left that is none of the log's."""
    for file in path.glob(f"{TOPIC}-*/*"):
        assert not file.name.endswith(".cleaned"), file
        assert file.stat().st_nlink == 1, file
    assert [file for file in (path / "staging").rglob("*") if file.is_file()] == []


def flat(numbers: dict[int, list[int]]) -> list[int]:
    return [number for found in numbers.values() for number in found]


def new_store(path: Path, durability: Durability) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with eoslog.open(path, create=True, durability=durability, config=QUIET) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS)


def die_and_check(path: Path, number: int, durability: Durability, mode: str) -> bool:
    new_store(path, durability)
    if mode == "alone":
        died = dies_before(number, path, lambda: jobs(path, durability))
        with opened(path, durability) as store:
            check(path, store)
    else:
        with opened(path, durability) as store:
            visible_numbers(store)  # Empty segments are open here.
            died = dies_before(number, path, lambda: jobs(path, durability))
            check(path, store)
    with opened(path, durability) as store:
        assert store.verify() == []
    check_files(path)
    return died


def main(folder: str, step: str, first: str, durability: Durability, mode: str) -> None:
    staged_job.WHOLE_FILE_BYTES_MIN = 0
    path = Path(folder) / "store"
    new_store(path, durability)
    arm(path, 0)
    jobs(path, durability)
    total = count()
    arm(Path("/nowhere"), 0)
    deaths = 0
    for number in range(int(first), total + 1, int(step)):
        try:
            deaths += die_and_check(path, number, durability, mode)
        except BaseException:
            print(f"call {number} of {total}", file=sys.stderr)
            raise
    print(f"{deaths} deaths, {total} calls")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
