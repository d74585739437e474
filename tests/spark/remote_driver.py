"""A Spark driver in a process of its own: it runs jobs, and can be killed with its Java."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAIN = Path(__file__).with_name("driver_main.py")
START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 120.0


class RemoteDriver:
    """It starts when it is made; `wait_until_up` waits for its session."""

    def __init__(self, log: Path, master: str, config: Mapping[str, object] | None = None) -> None:
        self.log = log
        self._calls = 0
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {0: queue.Queue()}
        folder = str(MAIN.parent)
        known = os.environ.get("PYTHONPATH", "")
        paths = folder if folder in known.split(os.pathsep) else f"{folder}{os.pathsep}{known}"
        with open(log, "wb") as printed:
            self._child = subprocess.Popen(
                [sys.executable, MAIN, master, json.dumps(config or {})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                env={**os.environ, "PYTHONPATH": paths},
                start_new_session=True,
                text=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_until_up(self) -> None:
        self._java = int(self._answer(0, START_TIMEOUT_S)["java"])

    def begin(self, job: str, **arguments: Any) -> int:
        """Start a job of `spark_jobs`."""
        self._calls += 1
        self._answers[self._calls] = queue.Queue()
        assert self._child.stdin is not None
        print(json.dumps([self._calls, job, arguments], default=str), file=self._child.stdin)
        self._child.stdin.flush()
        return self._calls

    def end(self, call: int, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Wait for a job. Raises RuntimeError with the reason if it failed."""
        answer = self._answer(call, timeout_s)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def has_ended(self, call: int) -> bool:
        """Whether a job has ended well. Raises RuntimeError if it failed."""
        with contextlib.suppress(queue.Empty):
            answer = self._answers[call].get_nowait()
            self._answers[call].put(answer)
            self.end(call)
            return True
        return False

    def run(self, job: str, **arguments: Any) -> Any:
        return self.end(self.begin(job, **arguments))

    def kill(self) -> None:
        """SIGKILL for Java, and for the Python process beside it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._java, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End all of it, if nobody has yet."""
        if self._child.returncode is not None:
            return  # Its number may be another process's by now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def _answer(self, call: int, timeout_s: float) -> dict[str, Any]:
        try:
            answer = self._answers[call].get(timeout=timeout_s)
        except queue.Empty:
            answer = {"died": "no answer"}
        if "died" in answer:
            raise AssertionError(f"the driver: {answer['died']}\n{self.log.read_text()[-4000:]}")
        return answer

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            answer = json.loads(line)
            self._answers[answer.get("call", 0)].put(answer)
        for answers in list(self._answers.values()):
            answers.put({"died": "its process is gone"})
