"""What must hold whatever went wrong: each row once, no holes, nothing left over."""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from read_back import records_in, staged_files

import eoslog
from eoslog.store.store import parts_of

LONGEST_WAIT_S = 120.0


def assert_exactly_once(store_path: Path, rows: Iterable[int], topic: str = "orders") -> None:
    """A reader finds each row once, at offsets that follow each other, in a store that is whole."""
    records = records_in(store_path, topic)
    found = Counter(int(record.value or b"-1") for record in records)
    expected = Counter(rows)
    assert found == expected, difference(found, expected)
    offsets: dict[int, list[int]] = {}
    for record in records:
        offsets.setdefault(record.partition, []).append(record.offset)
    with eoslog.open(store_path) as store:
        assert store.verify() == []
        for number in range(store.topics()[topic].partitions):
            partition = store.partition(topic, number)
            assert offsets.get(number, []) == list(range(partition.log_end_offset))
            assert partition.last_stable_offset == partition.log_end_offset


def difference(found: Counter[int], expected: Counter[int]) -> str:
    missing, extra = expected - found, found - expected
    return (
        f"{missing.total()} rows missing: {sorted(missing)[:10]}; "
        f"{extra.total()} too many: {sorted(extra)[:10]}"
    )


def assert_swept(store_path: Path) -> None:
    """The next sweep leaves no staged file."""
    with eoslog.open(store_path) as store:
        parts_of(store).staged.sweep()
    assert staged_files(store_path) == []


def wait_until_swept(store_path: Path, config: dict[str, int] | None = None) -> None:
    """Sweeps leave no staged file once the last task of a job that is over has ended.

    For tests in which a task may write on when all else is done: it may make a file, or leave one,
    just after a sweep.
    """
    until_s = time.monotonic() + LONGEST_WAIT_S
    while found := staged_files(store_path):
        assert time.monotonic() < until_s, f"never swept: {found}"
        with eoslog.open(store_path, config=config) as store:
            parts_of(store).staged.sweep()
        time.sleep(0.05)


def wait_for_the_end_of(process: int, timeout_s: float = 1.5) -> None:
    """Wait, a while, for Spark to kill a task's process. One that ended its task may live on."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s and is_alive(process):
        time.sleep(0.1)


def is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
