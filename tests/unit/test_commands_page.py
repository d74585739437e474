"""`docs/commands.md` tells of every command, and its examples print what it says they print."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_calls import call

from eoslog.cli.cli_group import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMPARED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# For what needs a shell: the command of this environment, whatever the path says.
SHELL = 'eoslog() { "$PYTHON" -m eoslog "$@"; }\n'
NEEDS_SHELL = re.compile(r"[|<>]|^(?!eoslog )")
STORE = {"EOSLOG_STORE": "data"}


def sections() -> list[str]:
    """The titles of the page's sections."""
    return re.findall(r"^## eoslog (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def examples() -> list[tuple[str, str, str]]:
    """What is run, in its order: its kind, its text, and what it should print."""
    found = []
    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            found.append((kind, text, ""))
            continue
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((kind, command, output))
    return found


def expand(word: str) -> list[str]:
    """The files that a word of the command line stands for, as a shell finds them."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def run(kind: str, text: str) -> str:
    """What an example prints, errors too."""
    if kind == "python":
        exec(compile(text, str(PAGE), "exec"), {})
        return ""
    if NEEDS_SHELL.search(text) is None:
        expanded = [name for word in shlex.split(text)[1:] for name in expand(word)]
        answer = call(*expanded, **STORE)
        return answer.stdout + answer.stderr
    done = subprocess.run(
        ["bash", "-c", SHELL + text],
        env={**os.environ, **STORE, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


def test_every_command_has_its_section():
    assert sorted(sections()) == sorted(COMMANDS)


def test_every_subcommand_is_named():
    from click import Context, Group

    from eoslog.cli.cli_group import cli

    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for name in COMMANDS:
        command = cli.get_command(Context(cli), name)
        if isinstance(command, Group):
            for subcommand in command.commands:
                assert f"{name} {subcommand}" in text


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checker = doctest.OutputChecker()
    found = examples()
    assert len(found) > 25
    for kind, text, expected in found:
        printed = run(kind, text)
        if not checker.check_output(expected, printed, COMPARED):
            pytest.fail(f"$ {text}\nexpected:\n{expected}\nprinted:\n{printed}")
