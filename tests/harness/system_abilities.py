"""What the system under the tests lacks, as an emulation of another processor does, by asking it.

A mark skips its test with the ability's name where that is missing.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import platform
import resource

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_GET_SECCOMP = 21
_MADV_POPULATE_WRITE = 23
# System calls by their numbers on x86-64, and on ARM.
_CALLS = {
    "get_robust_list": (274, 100),
}
_TOUCHED_PAGES = 64


@functools.cache
def _has_call(name: str) -> bool:
    """A call without arguments that mean anything fails, but with another error if it is there."""
    number = _CALLS[name][platform.machine() == "aarch64"]
    ctypes.set_errno(0)
    _LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
    return ctypes.get_errno() != errno.ENOSYS


@functools.cache
def _filters_calls() -> bool:
    return bool(_LIBC.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0)


@functools.cache
def _populates_maps() -> bool:
    """Whether it says so or not: pages that are there cost no fault at their first touch."""
    with mmap.mmap(-1, _TOUCHED_PAGES * mmap.PAGESIZE) as pages:
        try:
            pages.madvise(_MADV_POPULATE_WRITE)
        except OSError:
            return False
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for page in range(_TOUCHED_PAGES):
            pages[page * mmap.PAGESIZE] = 1
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < _TOUCHED_PAGES // 8


def _needs(ability: bool, name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not ability, reason=f"the system has no {name}")


needs_robust_mutexes = _needs(_has_call("get_robust_list"), "robust mutexes")
needs_call_filters = _needs(_filters_calls(), "filters of system calls (seccomp)")
needs_populated_maps = _needs(_populates_maps(), "maps that are populated (MADV_POPULATE_WRITE)")
