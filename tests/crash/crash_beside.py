"""A process that has the store open all the time, while another one works there, and dies."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from pathlib import Path

from crash.crash_checks import Found, check_history, go_on, look_and_check
from crash.crash_workload import PARTITIONS, TOPIC_CONFIG, Acknowledged, opened

import eoslog
from eoslog.checking import Recorder
from eoslog.store.store import parts_of

HANGS_AFTER_S = 120


def settle(store: eoslog.Store) -> None:
    """What the background thread does once it finds that a process is gone."""
    checkpointer = parts_of(store).checkpointer
    checkpointer._look_after_peers()
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


class Beside:
    """A forked process with the store open: all topics are made, and what there is was read."""

    def __init__(self, store: Path, histories: list[Path], acknowledged: Path) -> None:
        self._arguments = histories, acknowledged
        self._store = store

    def __enter__(self) -> Beside:
        ready, say_ready = os.pipe()
        begin, self._say_begin = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._say_begin)
                self._run(begin, say_ready)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        os.close(say_ready)
        os.close(begin)
        assert os.read(ready, 1) == b"r", "the process beside failed: see its traceback"
        os.close(ready)
        return self

    def _run(self, begin: int, say_ready: int) -> None:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        with opened(self._store) as store:
            for topic, partitions in PARTITIONS.items():
                store.create_topic(topic, partitions, config=TOPIC_CONFIG.get(topic))
            Found(store)  # All partitions are open here, and of the internal ones some.
            os.write(say_ready, b"r")
            os.close(say_ready)
            if os.read(begin, 1) == b"b":
                check_beside(store, *self._arguments)

    def check(self) -> None:
        """Have it check what it finds now, and do the rest; raises if it failed, or hung."""
        os.write(self._say_begin, b"b")
        assert self._ended() == 0, "the process beside failed: see its traceback"

    def __exit__(self, *_: object) -> None:
        if self._child:
            os.close(self._say_begin)
            self._say_begin = -1
            self._ended()

    def _ended(self) -> int:
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        if self._say_begin >= 0:
            os.close(self._say_begin)
        return status
