"""A handler of a signal that uses groups while its thread is in a call of a group's member: it is
done, or refused by an error; nothing hangs, and the partitions go to who is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
from crash.interrupted_lines import called_at
from crash.transaction_trace import QUIET

import eoslog
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.consumer.consumer import Consumer
from eoslog.errors import EoslogError, IllegalStateError

pytestmark = pytest.mark.crash

FILES = (
    "/eoslog/groups/group_member.py",
    "/eoslog/groups/group_log.py",
    "/eoslog/groups/group_coordinator.py",
)
Handler = Callable[[eoslog.Store, Consumer, Consumer], object]
STEP = 3

HANDLERS: dict[str, Handler] = {
    "close": lambda store, consumer, other: consumer.close(),
    "poll": lambda store, consumer, other: consumer.poll(timeout=0),
    "commit": lambda store, consumer, other: consumer.commit(),
    "unsubscribe": lambda store, consumer, other: consumer.unsubscribe(),
    "another polls": lambda store, consumer, other: other.poll(timeout=0),
    "groups": lambda store, consumer, other: (store.groups(), store.describe_group("g")),
}


def is_of_a_group(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(FILES)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[eoslog.Store]:
    with eoslog.open(tmp_path / "store", create=True, durability="process", config=QUIET) as opened:
        opened.create_topic("rows", partitions=2)
        opened.producer().append("rows", 0, [b"%d" % number for number in range(10)])
        yield opened


@pytest.mark.parametrize("name", HANDLERS)
def test_a_handler_at_lines_of_a_poll_and_a_commit(store, name):
    refused = 0

    def handle(_: str) -> None:
        nonlocal refused
        try:
            HANDLERS[name](store, consumer, other)
        except RuntimeError as error:
            if not isinstance(error, IllegalStateError):
                assert "same thread" in str(error)
                refused += 1
        except EoslogError:
            pass

    for line in itertools.count(1, STEP):
        consumer, other = store.consumer(group="g"), store.consumer(group="g")
        consumer.subscribe(["rows"])
        consumer.poll(timeout=0)
        other.subscribe(["rows"])
        other.poll(timeout=0)
        with suppress(EoslogError), called_at(line, is_of_a_group, handle) as seen:
            consumer.poll(timeout=0)
            consumer.commit()
        consumer.close()
        for _ in range(3):
            other.poll(timeout=0)
        assert len(other.assignment()) == 2, seen[-1]
        other.close()
        assert store.describe_group("g").members == (), seen[-1]
        if len(seen) < line:
            break
    assert line > 60
    assert refused > 0


def test_a_thread_lock_keeps_out_other_threads_and_refuses_its_own():
    lock = ThreadLock()
    with lock:
        assert lock.locked()
        with pytest.raises(RuntimeError, match="same thread"), lock:
            raise AssertionError("not reached")
        assert lock.locked()
    assert not lock.locked()
    with lock:
        pass
