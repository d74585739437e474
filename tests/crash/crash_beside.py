"""A process that has the store open all the time, while another one works there, and dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crash.crash_checks import Found, check_history, go_on, look_and_check
from crash.crash_workload import PARTITIONS, TOPIC_CONFIG, Acknowledged, opened
from harness.fork import Fork

import eoslog
from eoslog.checking import Recorder
from eoslog.store.store import parts_of


def settle(store: eoslog.Store) -> None:
    """What the background thread does once it finds that a process is gone."""
    checkpointer = parts_of(store).checkpointer
    checkpointer.peers.look()
    assert checkpointer.metrics()["errors"] == []


def check_beside(store: eoslog.Store, histories: list[Path], acknowledged: Path) -> None:
    """As `check_after`, by one who was there."""
    said = Acknowledged(acknowledged)
    with Recorder(histories[-1]) as recorder:
        settle(store)
        look_and_check(store, recorder, Acknowledged.read(acknowledged))
        go_on(store, recorder, said)
        store.close()
        with opened(store.path) as again:
            look_and_check(again, recorder, Acknowledged.read(acknowledged)).check_all()
    said.close()
    check_history(histories)


def _work(fork: Fork, store: Path, histories: list[Path], acknowledged: Path) -> None:
    """All topics are made, and what there is was read, before the other one begins."""
    with opened(store) as own:
        for topic, partitions in PARTITIONS.items():
            own.create_topic(topic, partitions, config=TOPIC_CONFIG.get(topic))
        Found(own)  # All partitions are open here, and of the internal ones some.
        fork.say("ready")
        fork.wait()
        check_beside(own, histories, acknowledged)


@contextmanager
def beside(store: Path, *arguments: Any) -> Iterator[Callable[[], None]]:
    """A process that has the store open; the call has it check what it finds, and do the rest."""
    with Fork(lambda fork: _work(fork, store, *arguments)) as fork:
        fork.hear()

        def check() -> None:
            fork.tell()
            fork.end()

        yield check
