"""What a member of a crew does: what it is told, one thing after the other.

A command is a line of JSON on standard input: a function of a module with its arguments, which gets
a `Hand` first; or code, which finds eoslog, the `Hand`'s `say` and `wait`, and the names that other
code left. Whatever is said is one line of JSON, written in one piece: the moment (nanoseconds of
the machine's monotonic clock), a word, and what belongs to it. So a kill cuts at most the last
line, and lines of several members have an order.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eoslog
from eoslog import TopicPartition, errors
from eoslog.storage import topic_registry
from eoslog.store.store import engine_of, parts_of


class Hand:
    """What the functions of a member share: its store, what they keep, and its voice."""

    def __init__(self) -> None:
        self.store: eoslog.Store
        self.kept: dict[str, Any] = {}
        self._names: dict[str, Any] = {}

    def say(self, word: str, *rest: Any) -> None:
        """One line, in the file before the next step."""
        line = json.dumps([time.monotonic_ns(), word, *rest], separators=(",", ":")) + "\n"
        os.write(1, line.encode())

    def wait(self) -> str:
        """The next line it is told; it ends where its parent has."""
        line = sys.stdin.readline()
        if not line:
            os._exit(3)
        return line.strip()

    def call(self, module: str, name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        return getattr(importlib.import_module(module), name)(self, *arguments, **named)

    def run(self, code: str, given: dict[str, Any]) -> None:
        exec(compile(code, "<told>", "exec"), self._names_with(given))

    def value(self, code: str, given: dict[str, Any]) -> Any:
        return eval(code, self._names_with(given))

    def _names_with(self, given: dict[str, Any]) -> dict[str, Any]:
        if not self._names:
            self._names |= {"wait": self.wait, "parts_of": parts_of, "engine_of": engine_of}
            self._names["say"] = lambda *words: self.say(*map(str, words))
            self._names |= {"os": os, "signal": signal, "threading": threading, "time": time}
            self._names |= {
                "eoslog": eoslog,
                "errors": errors,
                "Path": Path,
                "TopicPartition": TopicPartition,
            }
        self._names |= given
        return self._names

    def open(self, path: str, internal_segment_bytes: int = 0, **options: Any) -> None:
        """Open the store; with small segments its internal topics are compacted all the time."""
        if internal_segment_bytes:
            small = dict.fromkeys(("segment.bytes", "max.message.bytes"), internal_segment_bytes)
            vars(topic_registry)["INTERNAL_TOPIC_CONFIG"] = small
        self.store = eoslog.open(Path(path), **options)

    def close(self) -> None:
        """Close the store; what was kept of it is closed with it."""
        self.kept.clear()
        self.store.close()

    def in_thread(self, work: Callable[[], None]) -> None:
        """Work beside the commands; an error ends the process, and its text is the test's."""

        def guarded() -> None:
            try:
                work()
            except BaseException:
                traceback.print_exc()
                os._exit(71)

        threading.Thread(target=guarded, daemon=True).start()


def open_store(hand: Hand, path: str, **options: Any) -> None:
    hand.open(path, **options)


def close_store(hand: Hand) -> None:
    hand.close()


def main() -> None:
    """Do what standard input says, to its end; then close the store, if one is open."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    hand = Hand()
    for line in sys.stdin:
        what, *given = json.loads(line)
        try:
            answer = getattr(hand, what)(*given)
        except BaseException as error:
            hand.say("failed", type(error).__name__, str(error), traceback.format_exc())
        else:
            hand.say("did", answer)
    if getattr(hand, "store", None) is not None:
        hand.close()
