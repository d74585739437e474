"""`docs/commands.md` tells of every command, and its examples print what it says they print."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_calls import call

from eoslog.cli.group import COMMANDS, cli

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
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            for subcommand in command.commands:
                assert f"{name} {subcommand}" in text


def options_of(command: click.Command | None) -> list[click.Option]:
    """The options of a command and its subcommands, but for those that all commands have."""
    if isinstance(command, click.Group):
        return [option for one in command.commands.values() for option in options_of(one)]
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    return [one for one in options if not {"--store", "--json"} & set(one.opts)]


def test_every_option_is_in_its_commands_section():
    """Or on a page that the section names."""
    text = PAGE.read_text(encoding="utf-8")
    missing = []
    for name in COMMANDS:
        section = re.search(rf"^## eoslog {name}$(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        assert section is not None
        linked = re.findall(r"\]\(([a-z-]+\.md)", section[1])
        told = [section[1], *(PAGE.with_name(one).read_text(encoding="utf-8") for one in linked)]
        words = set(re.findall(r"--[a-z][a-z-]*", " ".join(told)))
        command = cli.get_command(click.Context(cli), name)
        missing += [
            f"{name} {one.opts[0]}"
            for one in options_of(command)
            if not words & {*one.opts, *one.secondary_opts}
        ]
    assert missing == [], missing


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checker = doctest.OutputChecker()
    found = examples()
    assert len(found) > 25
    for kind, text, expected in found:
        printed = run(kind, text)
        if not checker.check_output(expected, printed, COMPARED):
            pytest.fail(f"$ {text}\nexpected:\n{expected}\nprinted:\n{printed}")
