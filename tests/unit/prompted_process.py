"""Another process, which runs the code it is given, piece by piece as at a prompt.

with PromptedProcess() as other:
    other.run("store = eoslog.open(path)", path=str(path))
    assert other.value("store.durability") == "commit"
    other.kill()
"""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

_PROMPT = """
import json, os, signal, sys
names = {}
exec("import eoslog, os, threading, time\\nfrom eoslog import errors", names)
exec("from eoslog.store.store import parts_of", names)
for line in sys.stdin:
    told = json.loads(line)
    names.update(told["given"])
    answer = {"value": None}
    try:
        if told["value"]:
            answer["value"] = eval(told["code"], names)
        else:
            exec(told["code"], names)
    except BaseException as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(answer), flush=True)
"""


class PromptedProcessError(Exception):
    """What was raised in the other process; `kind` is the name of its class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class PromptedProcess:
    """A Python process that has imported eoslog; it ends, or is killed, with the block."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROMPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, code: str, **given: Any) -> None:
        """Execute code, with these names set before."""
        self.begin(code, **given)
        self.end()

    def value(self, code: str, **given: Any) -> Any:
        """The value of an expression, as JSON has it."""
        self._tell(code, True, given)
        return self.end()

    def begin(self, code: str, **given: Any) -> None:
        """Execute code, and do not wait: `end` does."""
        self._tell(code, False, given)

    def end(self) -> Any:
        """Wait for what was begun. Raises PromptedProcessError."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PromptedProcessError("died", str(self._process.wait(30)))
        answer = json.loads(line)
        if "error" in answer:
            raise PromptedProcessError(answer["error"], answer["text"])
        return answer["value"]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; dead on return."""
        self._process.kill()
        self._process.wait(30)

    def leave(self) -> None:
        """Come to the end of the program, as any program does; gone on return."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0

    def _tell(self, code: str, value: bool, given: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        told = {"code": code, "value": value, "given": given}
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
