"""Limits of a process that are reached anywhere in a store's work: files, address space, sizes.

Each limit lets the work go a little further than the one before. Errors are named, and without the
limit the store holds what was acknowledged, and goes on.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from call_faults import standard_work
from harness.fork import in_child
from short_form import short_form
from staged_jobs import quick_directory

import eoslog
from eoslog.store import files as store_files
from eoslog.store.store import abandon

pytestmark = pytest.mark.crash

MIB = 1 << 20


def opened_files() -> int:
    gc.collect()  # What earlier tests left open is closed now, or never.
    return len(list(Path("/proc/self/fd").iterdir()))


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def work_within(path: Path, kind: int, limit: int) -> list[str]:
    """Do it all under a soft limit, and check without it; the errors that calls raised."""
    assert eoslog.Store, "imported now: without address space it cannot be"
    work = standard_work.Work(path)
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        with mock.patch.object(store_files, "raise_open_files", lambda: None):
            work.run()
    finally:
        resource.setrlimit(kind, (soft, hard))
    store = work.store
    if isinstance(store, eoslog.Store) and not store.closed:
        abandon(store)
    standard_work.check(work)
    return work.errors


def run_within(kind: int, limit_of: Callable[[], int]) -> list[str]:
    with quick_directory(Path("/tmp")) as root:
        in_child(lambda: standard_work.make(root / "store"))
        errors = in_child(lambda: work_within(root / "store", kind, limit_of()))
    assert isinstance(errors, list)
    return errors


@pytest.mark.parametrize("more", short_form(range(2, 60, 2), 4, 20, 36))
def test_few_files(more):
    errors = run_within(resource.RLIMIT_NOFILE, lambda: opened_files() + more)
    assert errors or more > 20


@pytest.mark.parametrize(
    "more_mib", short_form([*range(0, 24, 2), *range(24, 240, 12)], 2, 60, 132)
)
def test_little_address_space(more_mib):
    run_within(resource.RLIMIT_AS, lambda: mapped_bytes() + more_mib * MIB)


@pytest.mark.parametrize("limit_bytes", short_form([0, 100, 4096, 16384, 65536, MIB], 2000, 70_000))
def test_small_files(limit_bytes):
    """SIGXFSZ is ignored by Python: the call says EFBIG."""
    run_within(resource.RLIMIT_FSIZE, lambda: limit_bytes)
