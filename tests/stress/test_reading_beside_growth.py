"""Readers at the end of a log whose file grows under them are never told that it is damaged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from staged_jobs import quick_directory

import eoslog
from eoslog import TopicPartition

WHERE = TopicPartition("t", 0)
LASTS_S = 30.0


@pytest.mark.soak
def test_a_file_that_grows_beside_its_readers_is_not_called_cut(tmp_path):
    errors: list[BaseException] = []
    until_s = time.monotonic() + LASTS_S

    def at_work(work: Callable[[], object]) -> None:
        try:
            while time.monotonic() < until_s:
                work()
        except BaseException as error:
            errors.append(error)
            raise

    def writer(store: eoslog.Store, seed: int) -> Callable[[], object]:
        producer, noise = store.producer(), random.Random(seed)
        return lambda: producer.append("t", 0, [b"x" * 50] * noise.choice([1, 20]))

    def reader(store: eoslog.Store) -> Callable[[], object]:
        consumer = store.consumer()
        consumer.assign([WHERE])
        consumer.seek_to_end(WHERE)
        return lambda: consumer.poll(timeout=0.1)

    with (
        quick_directory(tmp_path) as directory,
        eoslog.open(directory / "store", create=True, durability="process") as store,
    ):
        store.create_topic("t", config={"segment.bytes": 200_000})
        work = [*(writer(store, seed) for seed in range(2)), *(reader(store) for _ in range(4))]
        threads = [threading.Thread(target=at_work, args=(one,)) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert store.verify() == []
