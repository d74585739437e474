"""A process that works in a store while calls of another one fail, and takes up what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from call_faults.standard_work import (
    BESIDE,
    BESIDE_PLACE,
    PLACES,
    SETTINGS,
    Work,
    check_values,
    values_beside,
)
from harness.fork import Fork

import eoslog
from eoslog.store.store import parts_of

PAUSE_S = 0.002
ROUNDS_AFTERWARDS = 3
ID = "works-beside"


def work_beside(fork: Fork, path: Path, joins: Callable[[], None] | None) -> Work:
    """Commit one transaction after the other, and take up at the end what another one left.

    `joins` is called once the store is open.
    """
    work = Work(path, mark=BESIDE)
    with eoslog.open(path, durability="commit", config=SETTINGS) as store:
        work.store = store
        if joins is not None:
            joins()
        fork.say("ready")
        while not fork.told(PAUSE_S):
            commit_two(work)
        parts_of(store).checkpointer.peers.look()
        for _ in range(ROUNDS_AFTERWARDS):
            commit_two(work)
        work.attempt("close", store.close)
    return work


def commit_two(work: Work) -> None:
    """A transaction over two partitions, one of them the other process's too, and an append."""
    done, producer = work.attempt(
        "make a producer", lambda: work.store.producer(transactional_id=ID)
    )
    if not done or not work.attempt("init", producer.init_transactions)[0]:
        return
    place = PLACES[work.number % len(PLACES)]
    values = {place: work.values(1), BESIDE_PLACE: work.values(1)}
    if work.attempt("begin", producer.begin_transaction)[0]:
        written = work.write(producer, values, gathered=False)
        work.end(producer, values, commit=written)
    work.attempt("close a producer", producer.close)
    done, plain = work.attempt("make a producer", lambda: work.store.producer())
    if not done:
        return
    values = {place: work.values(1)}
    work.wrote(*_append(work, plain, values), values)
    work.attempt("close a producer", plain.close)


def _append(work: Work, producer: Any, values: Any) -> tuple[bool, Any]:
    ((place, ones),) = values.items()
    return work.attempt(
        "append", lambda: producer.append(place.topic, partition=place.partition, values=ones)
    )


def check_beside(path: Path, work: Work, *, retained: bool) -> None:
    """What it appended is there as the calls said; with `retained` the oldest of what it shared
    with the other process may be gone.
    """
    if retained:
        work.gone.update(value for place in PLACES for value in work.there[place])
        work.gone.update(
            one for some in work.maybe for place in PLACES for one in some.get(place, ())
        )
    with eoslog.open(path, durability="commit", config=SETTINGS) as store:
        check_values(work, {place: values_beside(store, place) for place in work.there})
