"""Completion in a shell: commands, options, and the names in the store that the line is about."""

from __future__ import annotations

import os
import subprocess
import sys

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
    ("words", "names"), [("eoslog con", ["config", "consume"]), ("eoslog consume o", TOPICS[1:])]
)
def test_a_shell_is_answered_by_the_program_which_loads_what_it_uses(path, words, names):
    script = (
        "import sys; from eoslog.cli import main; sys.argv[0] = 'eoslog'\n"
        "try: main()\n"
        "finally: print(sorted({'numpy', 'pyarrow', 'pyspark', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ
        | {"_EOSLOG_COMPLETE": "bash_complete", "COMP_WORDS": words}
        | {"COMP_CWORD": str(words.count(" "))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [*(f"plain,{name}" for name in names), "[]"]
    assert done.stderr == ""
