"""Calls of the command line inside this process, and what came back."""

import json
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from eoslog.cli.group import cli

DONE, FAILED, WRONG_USE = 0, 1, 2


@dataclass(frozen=True)
class Answer:
    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]


def call(*arguments: object, stdin: str | bytes | None = None, **environment: str) -> Answer:
    """Run a command; an exception that is no clean exit is raised here."""
    runner = CliRunner(env={"EOSLOG_STORE": None, "EOSLOG_TRACEBACK": None, **environment})
    result = runner.invoke(cli, [str(argument) for argument in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def assert_mistake(answer: Answer, status: int, *words: str) -> None:
    """The command ended with this status, one line that holds the words, and no traceback."""
    assert answer.status == status, answer
    assert "Traceback" not in answer.stderr
    line = answer.stderr.strip().splitlines()[-1]
    assert line.startswith("Error: "), answer.stderr
    for word in words:
        assert word in line
