"""A process that forks the members of a crew: eoslog is imported once, and a member begins in ms.

It never opens a store itself. Requests come over the Unix socket that is its standard input: JSON,
with the three files a new member gets as its input, output and errors. It answers with the
member's pid, tells of each end, and dies with the process that started it, as its members do.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any

_PR_SET_PDEATHSIG = 1
_REQUEST_BYTES_MAX = 1 << 16
PRELOADED = (
    "eoslog.store.opening",
    "eoslog.consumer.consumer",
    "eoslog.store.process_loop",
    "eoslog.producer.producer",
    "eoslog.store.store",
    "eoslog.producer.transactional_producer",
    "harness.member_main",
    "pytest",
)


def die_with_parent(parent: int) -> None:
    """Be killed when the process that started this one ends, whatever it ends by."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Nursery:
    """Forks members, passes signals on, and tells of ends."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._pidfds: dict[int, int] = {}

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._requests:
                    self._answer()
                else:
                    self._bury(key.data)

    def _answer(self) -> None:
        text, files, _, _ = socket.recv_fds(self._requests, _REQUEST_BYTES_MAX, 3)
        if not text:
            sys.exit()
        request = json.loads(text)
        if "signal" in request:
            pidfd = self._pidfds.get(request["pid"])
            if pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, request["signal"])
            return
        pid = self._fork(files)
        for file in files:
            os.close(file)
        pidfd = self._pidfds[pid] = os.pidfd_open(pid)
        self._selector.register(pidfd, selectors.EVENT_READ, pid)
        self._tell({"born": pid})

    def _fork(self, files: list[int]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            die_with_parent(parent)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            self._requests.close()
            for pidfd in self._pidfds.values():
                os.close(pidfd)
            self._selector.close()
            importlib.import_module("harness.member_main").main()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)

    def _bury(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        pidfd = self._pidfds.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._tell({"gone": pid, "exit": os.waitstatus_to_exitcode(status)})

    def _tell(self, what: dict[str, Any]) -> None:
        self._requests.sendall(json.dumps(what).encode())


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    # Not standard input any more: members get their own.
    requests = socket.socket(fileno=os.dup(0))
    Nursery(requests).run()


if __name__ == "__main__":
    main()
