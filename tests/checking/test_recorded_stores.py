"""Histories of a real store, used by threads, raise no alarm."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

from recorded_worker import EVENTS, LANES, OUT, PARTITIONS, SHARED, Worker, finish

import eoslog
from eoslog.checking import Recorder, check

WANTED = (("commit", "ok"), ("abort", "ok"), ("offsets", "ok"), ("poll", "ok"))


def seen(history: Path) -> Counter[tuple[str, str]]:
    """How many operations of each kind ended how; what is written of a last line is no line yet."""
    last: dict[tuple[str, int], tuple[str, str]] = {}
    for text in history.read_text().split("\n")[:-1]:
        line = json.loads(text)
        last[line["client"], line["op"]] = line["kind"], line["outcome"]
    return Counter(last.values())


def test_threads_that_fence_each_other(tmp_path: Path) -> None:
    path, history = tmp_path / "store", tmp_path / "h.jsonl"
    stop = threading.Event()
    failures: list[BaseException] = []
    with eoslog.open(path, create=True) as store, Recorder(history) as recorder:
        for topic in (EVENTS, OUT, SHARED):
            store.create_topic(topic, partitions=PARTITIONS)

        def work(number: int) -> None:
            try:
                Worker(store, recorder, number % LANES, number, stop.is_set).run()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(4)
            deadline = time.monotonic() + 100
            while not (is_enough(history) or failures or time.monotonic() > deadline):
                time.sleep(0.5)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failures
        finish(store, recorder)
    report = check([history], visible_within_s=0)
    assert report.clean, "\n".join(report.lines())
    assert report.counts["records_of_nobody"] == 0
    kinds = seen(history)
    assert report.counts["records_sent"] > 100
    for wanted in WANTED:
        assert kinds[wanted] > 0, kinds


def is_enough(history: Path) -> bool:
    """Whether a history has all that the test looks for; on a slow machine that takes a while."""
    kinds = seen(history)
    sent = sum(count for (kind, _), count in kinds.items() if kind == "send")
    return sent > 100 and all(kinds[wanted] > 0 for wanted in WANTED)
