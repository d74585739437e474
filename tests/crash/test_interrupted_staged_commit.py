"""An interrupt (Ctrl-C) at lines of a staged commit: what is called after it tells the truth, and
no files of a decided job go.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
from crash.interrupted_lines import interrupted_at
from crash.rows_topic import opened_with_rows, values
from staged_jobs import APP, load

import eoslog
from eoslog import StagedMessage, StagedWriter
from eoslog.store import peer_monitor
from eoslog.store.store import parts_of

pytestmark = pytest.mark.crash

FILES = ("/eoslog/staging/commit.py", "/eoslog/staging/pending_jobs.py")


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(FILES)


@pytest.fixture
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_monitor, "LOOK_ALONE_S", 0.01)


@pytest.fixture
def rows_store(tmp_path: Path) -> Iterator[eoslog.Store]:
    with opened_with_rows(tmp_path / "store") as opened:
        yield opened


def staged(store: eoslog.Store, line: int) -> tuple[int, StagedMessage]:
    """A job of a new run, and the version that it is to be."""
    run_id = store.begin_run(APP)
    with StagedWriter(
        store.path, APP, run_id, "0", partitions={"rows": 1}, durability="process"
    ) as writer:
        writer.append("rows", 0, [b"%d" % line])
    application = store.application(APP)
    assert application is not None
    return application.version + 1, writer.message


def cut_short(store: eoslog.Store, line: int, version: int, message: StagedMessage) -> list[str]:
    """Commit until an interrupt; the lines of the commit that were seen."""
    with suppress(KeyboardInterrupt), interrupted_at(line, is_ours) as seen:
        store.commit_staged(APP, version, [message])
    return seen


def version_of(store: eoslog.Store) -> int:
    application = store.application(APP)
    assert application is not None
    return application.version


def test_the_commit_called_again(rows_store):
    expected: list[bytes] = []
    for line in itertools.count(1):
        version, message = staged(rows_store, line)
        seen = cut_short(rows_store, line, version, message)
        rows_store.commit_staged(APP, version, [message])
        expected.append(b"%d" % line)
        assert values(rows_store) == expected, seen[-1]
        if len(seen) < line:
            break
    assert line > 60


def test_a_run_that_is_given_up(rows_store):
    expected: list[bytes] = []
    outcomes = set()
    for line in itertools.count(1):
        version, message = staged(rows_store, line)
        seen = cut_short(rows_store, line, version, message)
        rows_store.sweep_run(APP, message.run_id)
        is_in = version_of(rows_store) == version
        parts_of(rows_store).staged.recover_dead_peers()
        outcomes.add(is_in)
        if is_in:
            expected.append(b"%d" % line)
        assert values(rows_store) == expected, seen[-1]
        load(rows_store, APP, {("rows", 0): [b"next"]})
        expected.append(b"next")
        assert values(rows_store) == expected, seen[-1]
        assert rows_store.verify() == []
        if len(seen) < line:
            break
    assert outcomes == {True, False}


@pytest.mark.usefixtures("frequent_looks")
def test_nobody_comes_back_to_it(rows_store):
    """The process lives on, alone, and commits nothing more: its readers are let in all the same,
    and an acknowledged record behind the job is seen.
    """
    plain, held_back = rows_store.producer(), 0
    for line in itertools.count(1):
        seen = cut_short(rows_store, line, *staged(rows_store, line))
        last = b"behind %d" % line
        plain.append("rows", 0, [last])
        found = values(rows_store)
        held_back += last not in found
        until_s = time.monotonic() + 30
        while last not in found:
            assert time.monotonic() < until_s, seen[-1]
            time.sleep(0.002)
            found = values(rows_store)
        assert found.count(b"%d" % line) <= 1
        if len(seen) < line:
            break
    assert held_back > 10
    assert rows_store.verify() == []


def test_what_an_application_says_is_not_taken_back(rows_store):
    told = []
    for line in itertools.count(1):
        wanted, message = staged(rows_store, line)
        seen = cut_short(rows_store, line, wanted, message)
        version = version_of(rows_store)
        told.append(version == wanted)
        parts_of(rows_store).staged.recover_dead_peers()
        assert version_of(rows_store) == version, seen[-1]
        assert values(rows_store).count(b"%d" % line) == told[-1], seen[-1]
        if len(seen) < line:
            break
    assert True in told
    assert False in told
