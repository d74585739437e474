"""An interrupt (Ctrl-C) at lines of a staged producer's commit: what is called after it tells the
truth, and no files of a decided job go.
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

import eoslog
from eoslog.errors import EoslogError, IllegalStateError, InvalidTxnStateError, StoreFullError
from eoslog.producer.staged_producer import StagedProducer
from eoslog.store import peer_monitor
from eoslog.store.store import parts_of

pytestmark = pytest.mark.crash

FILES = (
    "/eoslog/producer/staged_producer.py",
    "/eoslog/producer/staged_transactions.py",
    "/eoslog/staging/staged_commit.py",
    "/eoslog/staging/pending_jobs.py",
)


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(FILES)


@pytest.fixture
def rows_store(tmp_path: Path) -> Iterator[eoslog.Store]:
    with opened_with_rows(tmp_path / "store") as opened:
        yield opened


def producer_of(store: eoslog.Store) -> StagedProducer:
    producer = store.producer(transactional_id="bulk", staged=True)
    producer.init_transactions()
    return producer


def cut_short(producer: StagedProducer, line: int) -> list[str]:
    """Begin, and commit until an interrupt; the lines of the commit that were seen."""
    producer.begin_transaction()
    producer.append("rows", 0, [b"%d" % line])
    with suppress(KeyboardInterrupt), interrupted_at(line, is_ours) as seen:
        producer.commit_transaction()
    return seen


def test_the_commit_called_again(rows_store):
    expected: list[bytes] = []
    for line in itertools.count(1):
        producer = producer_of(rows_store)
        seen = cut_short(producer, line)
        try:
            producer.commit_transaction()
        except IllegalStateError as error:
            assert "no transaction is open" in str(error), seen[-1]
        except EoslogError:
            # Cut short while its file was being written: nothing was decided.
            producer.abort_transaction()
            assert values(rows_store) == expected, seen[-1]
            continue
        expected.append(b"%d" % line)
        assert values(rows_store) == expected, seen[-1]
        producer.close()
        if len(seen) < line:
            break
    assert line > 60
    assert len(expected) > line / 2


def test_an_abort_when_the_commit_called_again_failed(rows_store, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise StoreFullError("no room")

    expected: list[bytes] = []
    outcomes = set()
    for line in itertools.count(1):
        producer = producer_of(rows_store)
        seen = cut_short(producer, line)
        with monkeypatch.context() as patch, suppress(EoslogError):
            patch.setattr(parts_of(rows_store).staged, "commit", full)
            producer.commit_transaction()
        try:
            producer.abort_transaction()
            outcomes.add("aborted")
        except InvalidTxnStateError as error:
            assert "is committed, as version" in str(error)
            expected.append(b"%d" % line)
            outcomes.add("committed")
            with pytest.raises(IllegalStateError):
                producer.abort_transaction()
        except IllegalStateError:
            expected.append(b"%d" % line)  # It had returned but for its last steps.
        assert values(rows_store) == expected, seen[-1]
        producer.begin_transaction()
        producer.append("rows", 0, [b"next"])
        producer.commit_transaction()
        expected.append(b"next")
        assert values(rows_store) == expected, seen[-1]
        producer.close()
        assert rows_store.verify() == []
        if len(seen) < line:
            break
    assert outcomes == {"aborted", "committed"}


def test_a_close_when_the_commit_called_again_failed(rows_store, monkeypatch):
    """The transaction is aborted or was committed; to the one who closes both are its end."""

    def full(*_: object, **__: object) -> None:
        raise StoreFullError("no room")

    expected: list[bytes] = []
    for line in itertools.count(1):
        producer = producer_of(rows_store)
        seen = cut_short(producer, line)
        with monkeypatch.context() as patch, suppress(EoslogError):
            patch.setattr(parts_of(rows_store).staged, "commit", full)
            producer.commit_transaction()
        producer.close()
        assert repr(producer) == "<eoslog.StagedProducer 'bulk', closed>"
        parts_of(rows_store).staged.recover_dead_peers()
        if values(rows_store) != expected:
            expected.append(b"%d" % line)
        assert values(rows_store) == expected, seen[-1]
        if len(seen) < line:
            break
    assert line / 4 < len(expected) < line


def test_nobody_comes_back_to_it(rows_store, monkeypatch):
    """The process lives on, alone, and commits nothing more: its readers are let in all the same,
    and an acknowledged record behind the job is seen.
    """
    monkeypatch.setattr(peer_monitor, "LOOK_ALONE_S", 0.01)
    plain, held_back, left = rows_store.producer(), 0, []
    for line in itertools.count(1):
        producer = producer_of(rows_store)
        seen = cut_short(producer, line)
        left.append(producer)  # Not closed: that would end it.
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
        producer = producer_of(rows_store)
        before = rows_store.application("bulk").version
        seen = cut_short(producer, line)
        version = rows_store.application("bulk").version
        told.append(version > before)
        producer.close()
        parts_of(rows_store).staged.recover_dead_peers()
        assert rows_store.application("bulk").version == version, seen[-1]
        assert values(rows_store).count(b"%d" % line) == told[-1], seen[-1]
        if len(seen) < line:
            break
    assert True in told
    assert False in told
