"""Tables of the command line: no value is cut, however narrow the terminal is."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import rich.console
from rich.cells import cell_len
from rich.console import Console
from short_form import short_form

import eoslog
from eoslog import TopicPartition
from eoslog.cli import table as cli_table

LONG_TOPIC = "orders.of-a-rather-long-name_" + "n" * 60
IDS = [
    "billing-service-0123456789-0123456789-01",
    "an id, with words; and a comma",
    "[red]not markup[/red] :smile:",
    "漢字の識別子とその続きとその続き",
    "i" * 200,
]
GROUP = "group-of-consumers-" + "g" * 50
CLIENT = "client-of-a-name-" + "c" * 30


@pytest.fixture(scope="module")
def full_store(tmp_path_factory) -> Path:
    """A store with long names of all kinds."""
    path = tmp_path_factory.mktemp("tables") / "s"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic(LONG_TOPIC, partitions=12)
        store.create_topic("t")
        for name in IDS:
            producer = store.producer(transactional_id=name)
            producer.init_transactions()
            with producer.transaction():
                for number in range(12):
                    producer.append(LONG_TOPIC, number, [b"v"])
                producer.send_offsets_to_transaction({TopicPartition(LONG_TOPIC, 3): 1}, GROUP)
    return path


def on_a_terminal(arguments: list[str], columns: int, **environment: str) -> str:
    """What a command shows on a terminal of so many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {key: one for key, one in os.environ.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "eoslog", *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        env=inherited | {"TERM": "xterm", "LC_ALL": "C.UTF-8"} | environment,
    )
    os.close(its)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 1 << 16)
        except OSError:  # The process has ended, and all was read.
            break
    os.close(ours)
    assert process.wait() == 0, shown
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())


COMMANDS = {
    "transactions list": IDS,
    "transactions describe --transactional-id " + IDS[0]: [IDS[0]],
    f"transactions describe-producers --topic {LONG_TOPIC} --partition 0": ["None"],
    "transactions find-hanging": [],
    "topics": [LONG_TOPIC],
    f"topics describe {LONG_TOPIC}": [LONG_TOPIC],
    "groups": [GROUP],
    "groups describe --all-groups": [GROUP, LONG_TOPIC],
    f"groups describe {GROUP} --state": [GROUP],
    f"groups describe {GROUP} --members": [],
    f"groups reset-offsets {GROUP} --all-topics --to-earliest": [GROUP, LONG_TOPIC],
    f"producers --topic {LONG_TOPIC}": [LONG_TOPIC],
}


@pytest.mark.parametrize("command", short_form(COMMANDS, "transactions list"))
def test_no_name_and_no_id_is_cut(full_store, command):
    arguments = ["--store", str(full_store), *command.split(" ", command.count(" "))]
    for columns in (40, 80, 300):
        shown = on_a_terminal(arguments, columns)
        assert "…" not in shown
        for name in COMMANDS[command]:
            assert name in shown, (columns, name)
    piped = subprocess.run(
        [sys.executable, "-m", "eoslog", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "20", "LC_ALL": "C.UTF-8"},
    ).stdout
    assert all(name in piped for name in COMMANDS[command])
    assert "\x1b" not in piped


def test_columns_in_the_environment_narrow_the_table_and_cut_nothing(full_store):
    arguments = ["--store", str(full_store), "transactions", "list"]
    wide, narrow = (on_a_terminal(arguments, 400, COLUMNS=columns) for columns in ("390", "30"))
    assert "TransactionState" in wide
    assert "TransactionState" not in narrow
    for shown in (wide, narrow):
        assert all(name in shown for name in IDS)


def test_the_members_of_a_group(full_store):
    with (
        eoslog.open(full_store) as store,
        store.consumer(group="watched", config={"client.id": CLIENT}) as consumer,
    ):
        consumer.subscribe([LONG_TOPIC])
        consumer.poll(timeout=0)
        member = store.describe_group("watched").members[0]
        for option in ([], ["--members"]):
            arguments = ["--store", str(full_store), "groups", "describe", "watched", *option]
            for columns in (40, 80):
                shown = on_a_terminal(arguments, columns)
                assert member.member_id in shown
                assert CLIENT in shown
                assert member.host in shown


def shown_at(width: int, columns, rows, monkeypatch, **named) -> list[str]:
    """The lines of a table on a terminal of that width."""
    output = io.StringIO()

    def console(width: int = width) -> Console:
        return Console(file=output, force_terminal=True, width=width, color_system=None)

    monkeypatch.setattr(rich.console, "Console", console)
    monkeypatch.setattr(cli_table, "is_plain", lambda _: False)
    monkeypatch.setattr(cli_table, "standard_output", lambda: None)
    cli_table.print_rows(columns, rows, **named)
    return [line.rstrip() for line in re.sub(r"\x1b\[\d+m", "", output.getvalue()).splitlines()]


def test_where_there_is_room_nothing_folds(monkeypatch):
    lines = shown_at(80, ("SomeName", "Number"), [("a", 1), ("b", 22)], monkeypatch)
    assert [line.split() for line in lines if "─" not in line] == [
        ["SomeName", "Number"],
        ["a", "1"],
        ["b", "22"],
    ]


def test_names_of_columns_fold_between_their_words_first(monkeypatch):
    rows = [("i" * 40, 1, 2)]
    columns = ("TransactionalId", "CoordinatorEpoch", "LOG-END-OFFSET")
    lines = shown_at(70, columns, rows, monkeypatch)
    assert max(map(cell_len, lines)) <= 70
    words = " ".join(lines).split()
    assert {"Coordinator", "Epoch", "LOG-END-", "OFFSET", "i" * 40} <= set(words)


def test_a_list_folds_between_its_elements(monkeypatch):
    names = [f"topic-of-a-name-{number}" for number in range(10)]
    lines = shown_at(60, ("Id", "Partitions"), [("an id", names)], monkeypatch)
    assert max(map(cell_len, lines)) <= 60
    assert [word.rstrip(",") for word in " ".join(lines).split() if "topic" in word] == names


def test_characters_that_do_something_to_a_terminal_are_escaped(monkeypatch):
    lines = shown_at(80, ("Id",), [("a\x1b[2Jb\nc\td\x07",)], monkeypatch)
    assert lines[-1].strip() == r"a\x1b[2Jb\nc\td\x07"


def test_a_table_without_rows_has_the_names_of_its_columns(monkeypatch):
    lines = shown_at(80, ("Id", "Number"), [], monkeypatch)
    assert lines[0].split() == ["Id", "Number"]


def test_json_has_all_of_every_value(full_store):
    arguments = ["--store", str(full_store), "--json", "transactions", "list"]
    rows = json.loads(on_a_terminal(arguments, 40))
    assert sorted(row["transactional_id"] for row in rows) == sorted(IDS)
