"""Histories of real stores, used by threads and by processes that are killed, raise no alarm."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from recorded_worker import LANES, Worker, finish, make_topics

import eoslog
from eoslog.checking import Recorder, Report, check

WORKER = Path(__file__).with_name("recorded_worker.py")
WANTED = (("commit", "ok"), ("abort", "ok"), ("offsets", "ok"), ("poll", "ok"))


def seen(files: list[Path]) -> Counter[tuple[str, str]]:
    """How many operations of each kind ended how; what is written of a last line is no line yet."""
    last: dict[tuple[str, int], tuple[str, str]] = {}
    for path in files:
        for text in path.read_text().split("\n")[:-1]:
            line = json.loads(text)
            last[line["client"], line["op"]] = line["kind"], line["outcome"]
    return Counter(last.values())


def checked(files: list[Path]) -> Report:
    report = check(files, visible_within_s=0)
    assert report.clean, "\n".join(report.lines())
    assert report.counts["records_of_nobody"] == 0
    return report


def test_threads_that_fence_each_other(tmp_path: Path) -> None:
    path, history = tmp_path / "store", tmp_path / "h.jsonl"
    make_topics(path)
    stop = threading.Event()
    failures: list[BaseException] = []
    with eoslog.open(path, durability=None) as store, Recorder(history) as recorder:

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
    finish(path, tmp_path / "last.jsonl")
    files = [history, tmp_path / "last.jsonl"]
    report = checked(files)
    kinds = seen(files)
    assert report.counts["records_sent"] > 100
    for wanted in WANTED:
        assert kinds[wanted] > 0, kinds


def is_enough(history: Path) -> bool:
    """Whether a history has all that the test looks for; on a slow machine that takes a while."""
    kinds = seen([history])
    sent = sum(count for (kind, _), count in kinds.items() if kind == "send")
    return sent > 100 and all(kinds[wanted] > 0 for wanted in WANTED)


def kill_often(rounds: int, folder: Path) -> list[Path]:
    """Processes of all lanes, killed at any time and started again; their histories."""
    noise = random.Random(rounds)
    files: list[Path] = []
    children: dict[int, tuple[subprocess.Popen[str], Path]] = {}
    try:
        for _ in range(rounds):
            for number in range(LANES + 1):
                if number not in children:
                    files.append(folder / f"{len(files)}.jsonl")
                    command = [sys.executable, str(WORKER), str(folder / "store"), str(files[-1])]
                    command += [str(number % LANES), str(noise.randrange(1 << 30))]
                    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
                    children[number] = child, files[-1]
            for child, history in children.values():
                wait_for(history, child)
            time.sleep(noise.uniform(0, 0.3))
            anywhere, in_a_call = (children.pop(one) for one in noise.sample(sorted(children), 2))
            kill(anywhere[0])
            stop_in_a_call(*in_a_call)
            kill(in_a_call[0])
    finally:
        for child, _ in children.values():
            kill(child)
    return files


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def stop_in_a_call(child: subprocess.Popen[str], history: Path) -> None:
    """Between the line that says what is about to be done and the one that says how it went."""
    deadline = time.monotonic() + 60
    while True:
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        if under_way(history):
            return
        child.send_signal(signal.SIGCONT)
        assert time.monotonic() < deadline
        time.sleep(0.001)


def under_way(history: Path) -> bool:
    """Whether the last whole line is of an operation that has not ended."""
    with history.open("rb") as file:
        file.seek(-min(history.stat().st_size, 100_000), os.SEEK_END)
        line = json.loads(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2])
    return bool(line["outcome"] == "unknown")


def wait_for(history: Path, child: subprocess.Popen[str]) -> None:
    """Until a process has done something; it runs for ever."""
    deadline = time.monotonic() + 60
    while not history.exists() or history.stat().st_size < 20_000:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("rounds", [6, pytest.param(150, marks=pytest.mark.soak)])
def test_processes_that_are_killed(rounds: int, tmp_path: Path) -> None:
    make_topics(tmp_path / "store")
    files = kill_often(rounds, tmp_path)
    finish(tmp_path / "store", tmp_path / "last.jsonl")
    files.append(tmp_path / "last.jsonl")
    report = checked(files)
    kinds = seen(files)
    assert report.counts["transactions"] > 20
    assert kinds["commit", "ok"] > 10, kinds
    assert sum(count for (_, outcome), count in kinds.items() if outcome == "unknown") >= rounds, (
        kinds
    )
