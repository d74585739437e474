"""Backups again and again beside processes with overlapping transactions and staged jobs; some are
killed. Each copy that opens verifies, and holds whole transactions and jobs, and none without those
that were committed before it.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness.fork import Fork
from short_form import short_form
from staged_jobs import load, quick_directory
from stores import QUIET

import eoslog
from eoslog.errors import NotAStoreError

PARTITIONS = 3
TOPICS = ("a", "b")
PLACES = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
CONFIG = {**QUIET, "eoslog.spare.segments": 0}
# Every so manieth is killed.
KILLED_EACH = 4
TRIES_A_STORE = 40
PAUSE_S = 0.004


def records_of(lane: str, number: int) -> dict[tuple[str, int], list[bytes]]:
    """What a lane's transaction of a number holds: some records in some places."""
    noise = random.Random(f"{lane} {number}")
    places = noise.sample(PLACES, noise.randint(1, 4))
    counts = [noise.randint(1, 3) for _ in places]
    total = sum(counts)
    found, index = {}, 0
    for place, count in zip(places, counts, strict=True):
        found[place] = [
            b"%s:%d:%d:%d" % (lane.encode(), number, index + one, total) for one in range(count)
        ]
        index += count
    return found


def is_aborted(lane: str, number: int) -> bool:
    return random.Random(f"end of {lane} {number}").random() < 0.2


def overlap(fork: Fork, path: Path, worker: int) -> None:
    """Two transactional ids, whose transactions overlap without an end; some are prepared first."""
    with eoslog.open(path, config=CONFIG) as store:
        lanes = [f"tx{worker}{letter}" for letter in "ab"]
        producers = [store.producer(transactional_id=lane) for lane in lanes]
        for producer in producers:
            producer.init_transactions()
        noise = random.Random(worker)
        fork.say("ready")
        numbers, left = [0, 0], [None, None]
        while not fork.told():
            one = noise.randrange(2)
            producer, lane = producers[one], lanes[one]
            if left[one] is None:
                producer.begin_transaction()
                left[one] = list(records_of(lane, numbers[one]).items())
            elif left[one]:
                (topic, partition), values = left[one].pop()
                producer.append(topic, partition, values)
            elif is_aborted(lane, numbers[one]):
                producer.abort_transaction()
                numbers[one], left[one] = numbers[one] + 1, None
            else:
                if noise.random() < 0.2:
                    producer.complete_transaction(producer.prepare_transaction())
                else:
                    producer.commit_transaction()
                numbers[one], left[one] = numbers[one] + 1, None
            time.sleep(PAUSE_S * noise.random())


def stage(fork: Fork, path: Path) -> None:
    """Staged jobs, one after another."""
    with eoslog.open(path, config=CONFIG) as store:
        store.begin_run("job")
        fork.say("ready")
        number = 0
        while not fork.told():
            load(store, "job", records_of("job", number))
            number += 1
            time.sleep(0.01)


def check_copy(copy: Path) -> int:
    """How many transactions and jobs are in it."""
    with eoslog.open(copy, config=CONFIG) as store:
        assert store.verify() == []
        for one in store.transactions():
            if one.transaction_state == "Ongoing":
                # It was prepared at the instant, and holds up the readers until it is decided.
                store.abort_transaction(one.transactional_id)
        with store.consumer() as consumer:
            consumer.assign([eoslog.TopicPartition(*place) for place in PLACES])
            seen: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(
                lambda: defaultdict(list)
            )
            while records := consumer.poll(timeout=0):
                for record in records:
                    lane, number, index, total = record.value.decode().split(":")
                    seen[lane][int(number)].append((int(index), int(total)))
        count = 0
        for lane, numbers in seen.items():
            for number, found in numbers.items():
                assert sorted(found) == [(one, found[0][1]) for one in range(found[0][1])], (
                    f"{lane}: {number} is not whole: {found}"
                )
            expected = [
                number
                for number in range(max(numbers) + 1)
                if lane == "job" or not is_aborted(lane, number)
            ]
            assert sorted(numbers) == expected, f"{lane}: one is missing below {max(numbers)}"
            count += len(numbers)
        job = store.application("job")
        if job is not None and "job" in seen:
            assert (job.version, job.state) == (max(seen["job"]), "complete")
    return count


def back_up(fork: Fork, path: Path, copy: Path, *, stays: bool) -> float:
    with eoslog.open(path, config=CONFIG) as store:
        fork.say("ready")
        fork.wait()
        began_s = time.monotonic()
        store.backup(copy)
        took_s = time.monotonic() - began_s
        if stays:
            fork.wait()  # It is killed by now.
        return took_s


def no_store_but(path: Path, place: Path) -> None:
    for one in place.iterdir():
        for directory in (one, *(inner for inner in one.iterdir() if inner.is_dir())):
            if directory != path:
                with pytest.raises(NotAStoreError):
                    eoslog.open(directory)


def one_store(place: Path, durability: str, tries: int, seed: int) -> tuple[int, int, int]:
    """So many backups of a store: how many were killed, how many copies had their name all the
    same, and how many transactions and jobs the others had.
    """
    path, noise = place / f"store{seed}", random.Random(seed)
    with eoslog.open(path, create=True, config=CONFIG, durability=durability) as store:
        store.create_topics(dict.fromkeys(TOPICS, PARTITIONS), {"segment.bytes": 16384})
    works: list[Callable[[Fork], Any]] = [
        lambda fork, worker=worker: overlap(fork, path, worker) for worker in range(3)
    ]
    writers = [Fork(work, seconds=3000) for work in (*works, lambda fork: stage(fork, path))]
    killed = named = counted = 0
    usual_s = 0.1
    try:
        for writer in writers:
            writer.hear()
        for number in range(tries):
            copy = place / f"copy{number}"
            is_killed = number % KILLED_EACH == 0

            def work(fork: Fork, copy: Path = copy, stays: bool = is_killed) -> float:
                return back_up(fork, path, copy, stays=stays)

            with Fork(work) as child:
                child.hear()
                child.tell()
                if is_killed:
                    time.sleep(1.1 * usual_s * noise.random())
                    os.kill(child.pid, signal.SIGKILL)
                    child.reap()
                    killed += child.exit == -signal.SIGKILL
                    if not copy.exists():
                        no_store_but(path, place)
                        continue
                    named += 1
                else:
                    usual_s = (usual_s + child.end()) / 2
            counted += check_in_child(copy)
            remove(place, copy)
    finally:
        for writer in writers:
            with suppress(OSError):
                writer.tell()
        for writer in writers:
            writer.end()
    with eoslog.open(path, config=CONFIG) as store:
        assert store.verify() == []
    remove(place, path)
    return killed, named, counted


def check_in_child(copy: Path) -> int:
    with Fork(lambda _: check_copy(copy)) as child:
        found: int = child.end()
        return found


def remove(place: Path, path: Path) -> None:
    from eoslog.fs.private_files import remove_directory

    remove_directory(path)
    for left in place.glob(".copy*"):
        remove_directory(left)


@pytest.mark.parametrize(
    ("durability", "tries"), short_form([("commit", 8), ("process", 1000)], ("commit", 8))
)
def test_every_copy_holds_whole_transactions(tmp_path, durability, tries):
    killed = named = counted = 0
    with quick_directory(tmp_path) as place:
        for seed in range(max(1, tries // TRIES_A_STORE)):
            level = ("commit", "process")[seed % 2] if tries > TRIES_A_STORE else durability
            found = one_store(place, level, min(tries, TRIES_A_STORE), seed)
            killed, named, counted = killed + found[0], named + found[1], counted + found[2]
    assert counted > 0
    assert killed == tries // KILLED_EACH
    print(f"{tries} backups, {killed} killed, {named} of these after they had their name")
