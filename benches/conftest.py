"""What all benches share: their sizes, a directory that is gone afterwards, the machine's facts."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import describe_machine
from sizes import Sizes, chosen_sizes

REMOVED_WITHIN_S = 60.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("python_files", "bench_*.py")
    config.addinivalue_line("python_functions", "bench_*")
    config.addinivalue_line("markers", "timeout: seconds after which a bench is given up")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Stores of many GiB are written first.
        item.add_marker(pytest.mark.timeout(1800))


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Any) -> None:
    machine_info["eoslog"] = describe_machine(bench_root(), chosen_sizes().name)
    # Not for others to read.
    machine_info["node"] = platform.system()


def bench_root() -> Path:
    """Where stores are made: EOSLOG_BENCH_DIR, else the directory for temporary files."""
    return Path(os.environ.get("EOSLOG_BENCH_DIR", tempfile.gettempdir()))


@pytest.fixture(scope="session")
def sizes() -> Sizes:
    return chosen_sizes()


@pytest.fixture
def bench_path() -> Iterator[Path]:
    """An empty directory on the disk that is measured; removed with all that is in it."""
    path = Path(tempfile.mkdtemp(prefix="eoslog-bench-", dir=bench_root()))
    try:
        yield path
    finally:
        # A process of Spark's may still be closing a store in it, and make files meanwhile.
        until_s = time.monotonic() + REMOVED_WITHIN_S
        while path.exists() and time.monotonic() < until_s:
            shutil.rmtree(path, ignore_errors=True)
            time.sleep(0.01)
