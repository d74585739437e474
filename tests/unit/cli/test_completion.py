"""Completion in a shell: commands, options, and the names in the store that the line is about."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from read_only_stores import unchanged

import eoslog
from eoslog import TopicPartition
from eoslog.cli.group import COMMANDS, cli
from eoslog.storage.opened_partitions import OpenedPartitions


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topics({"orders": 1, "ordinals": 1, "bills": 1})
        store.consumer("readers").commit({TopicPartition("orders", 0): 0})
        for name in ("till-1", "till-2"):
            store.producer(transactional_id=name).init_transactions()
    monkeypatch.setenv("EOSLOG_STORE", str(path))
    return path


def completed(line: str) -> list[str]:
    """The names that a shell offers for the last word of a line."""
    *words, incomplete = line.split(" ")
    shell = ShellComplete(cli, {}, "eoslog", "_EOSLOG_COMPLETE")
    return [str(one.value) for one in shell.get_completions(words, incomplete)]


TOPICS = ["bills", "orders", "ordinals"]
TILLS = ["till-1", "till-2"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("consume ", TOPICS),
        ("consume ord", ["orders", "ordinals"]),
        ("consume --follow --json ord", ["orders", "ordinals"]),
        ("consume orders --group ", ["readers"]),
        ("consume orders --group x", []),
        ("produce o", ["orders", "ordinals"]),
        ("produce orders --transactional-id ", TILLS),
        ("get-offsets b", ["bills"]),
        ("log-dirs --topic b", ["bills"]),
        ("topics describe b", ["bills"]),
        ("topics alter b", ["bills"]),
        ("topics delete b", ["bills"]),
        ("topics create b", []),
        ("groups describe ", ["readers"]),
        ("groups delete ", ["readers"]),
        ("groups reset-offsets ", ["readers"]),
        ("groups reset-offsets readers --topic b", ["bills"]),
        ("groups delete-offsets readers --topic b", ["bills"]),
        ("transactions explain b", ["bills"]),
        ("transactions describe --transactional-id ", TILLS),
        ("transactions abort --transactional-id till-2", ["till-2"]),
        ("transactions find-hanging --topic b", ["bills"]),
        ("transactions describe-producers --topic b", ["bills"]),
        ("producers --topic b", ["bills"]),
        ("delete-records --topic b", ["bills"]),
        ("verify --topic b", ["bills"]),
        ("import b", ["bills"]),
        ("export b", ["bills"]),
        ("consume orders --fo", ["--follow", "--format"]),
        ("top", ["top", "topics"]),
        ("groups re", ["reset-offsets"]),
        ("", sorted(COMMANDS)),
        ("nonsense ", sorted(COMMANDS)),
    ],
)
def test_what_a_line_is_completed_with(path, monkeypatch, line, names):
    def opened(*_: object) -> None:
        raise AssertionError("a partition was opened")

    monkeypatch.setattr(OpenedPartitions, "find", opened)
    with unchanged(path):
        assert completed(line) == names


def test_the_store_of_the_line_goes_before_that_of_the_environment(path, tmp_path, capfd):
    other = tmp_path / "other"
    with eoslog.open(other, create=True) as store:
        store.create_topic("elsewhere")
    for line in (f"--store {other} consume ", f"consume --store {other} "):
        assert completed(line) == ["elsewhere"]
    for line in ("--store /nowhere consume ", f"consume --store {tmp_path} "):
        assert completed(line) == []
    assert capfd.readouterr() == ("", "")


def test_what_goes_wrong_completes_nothing_and_says_nothing(path, monkeypatch, capfd):
    (path / "state" / "settings.json").write_bytes(b"damaged")
    assert completed("consume ") == []
    monkeypatch.delenv("EOSLOG_STORE")
    assert completed("consume ") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "names"), [("eoslog con", ["config", "consume"]), ("eoslog consume o", TOPICS[1:])]
)
def test_a_shell_is_answered_by_the_program_which_loads_what_it_uses(path, line, names):
    script = (
        "import sys; from eoslog.cli import main; sys.argv[0] = 'eoslog'\n"
        "try: main()\n"
        "finally: print(sorted({'numpy', 'pyarrow', 'pyspark', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ
        | {"_EOSLOG_COMPLETE": "bash_complete", "COMP_LINE": line}
        | {"COMP_PART": line.rpartition(" ")[2]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [*(f"plain,{name}" for name in names), "[]"]
    assert done.stderr == ""


def typed_in_bash(lines: list[str], directory: Path) -> str:
    """The output of an interactive bash in which these lines are typed, `eoslog` completed.

    There `eoslog` prints its arguments, each in angle brackets.
    """
    program = directory / "eoslog"
    program.write_text(
        "#!/bin/sh\n"
        f'if [ -n "$_EOSLOG_COMPLETE" ]; then exec {sys.executable} -m eoslog; fi\n'
        "printf '<%s>' \"$@\"\n"
    )
    program.chmod(0o700)
    terminal, of_shell = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=of_shell,
        stdout=of_shell,
        stderr=of_shell,
        start_new_session=True,
        env=os.environ | {"PATH": f"{directory}:{os.environ['PATH']}", "TERM": "dumb"},
    )
    os.close(of_shell)
    setup = 'eval "$(_EOSLOG_COMPLETE=bash_source eoslog)"'
    os.write(terminal, "\n".join([setup, *lines, "exit", ""]).encode())
    output = b""
    with suppress(OSError):  # The shell has left its terminal.
        while read := os.read(terminal, 65536):
            output += read
    os.close(terminal)
    assert shell.wait(30) == 0
    return output.decode()


def test_bash_completes_a_name_with_colons(path, tmp_path):
    file = tmp_path / "a.log"
    file.write_text("one\n")
    with eoslog.open(path) as store:
        eoslog.import_file(store, "bills", file, name="a:log", format="lines")
    lines = [
        "eoslog groups describe imp\t",
        "eoslog groups describe import:\t",
        "eoslog groups describe import:bills:a\t",
        "eoslog groups describe 'import:b\t",
        "eoslog consume orders --group=imp\t",
        "eoslog consume orders --group=import:b\t",
        "eoslog consume orders --group import:nothing\t",
        "eoslog topics describe bi\t",
    ]
    output = typed_in_bash(lines, tmp_path)
    described = "<groups><describe><import:bills:a:log>"
    consumed = "<consume><orders><--group=import:bills:a:log>"
    assert re.findall("<.*>", output) == [
        *[described] * 4,
        *[consumed] * 2,
        "<consume><orders><--group><import:nothing>",
        "<topics><describe><bills>",
    ]
