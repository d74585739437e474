"""Tests marked `forked` are run in a child: what they meet may end a process."""

from __future__ import annotations

import pytest
from harness.fork import in_child


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function):
    if pyfuncitem.get_closest_marker("forked") is None:
        return (yield)
    work = pyfuncitem.obj
    pyfuncitem.obj = lambda **named: in_child(lambda: work(**named))
    try:
        return (yield)
    finally:
        pyfuncitem.obj = work
