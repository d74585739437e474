"""Each row of `docs/kafka-tools.md`: our command and the Python beside it do the same to a store.

A row is: Kafka's options, our command, Python. The last may be empty if nothing is changed.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cli_calls import DONE, call

import eoslog
from eoslog import TopicPartition

PAGE = Path(__file__).parents[2] / "docs" / "kafka-tools.md"
ORDERS_0 = TopicPartition("orders", 0)
NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
OFFSETS_FILE = '{"partitions": [{"topic": "orders", "partition": 0, "offset": 2}], "version": 1}'
# Words of the commands that change the store of `made`, and of those that change nothing after all.
CHANGES = re.compile(r" (create|alter|delete(-\w+)?) |--execute|eoslog config --")
CHANGE_NOTHING = ("--dry-run", "--if-not-exists", "--to-current")


def rows() -> list[tuple[str, str, str]]:
    """The cells of all tables: Kafka's options after the tool of the section."""
    found = []
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        tool, _, text = section.partition("\n")
        for line in text.splitlines():
            cells = [cell.strip().strip("`") for cell in line.strip("|").split(" | ")]
            if line.startswith("| `"):
                kafka, ours, python = cells[0].lstrip("| `"), cells[1], cells[2].strip(" |`")
                found.append((f"{tool} {kafka}", ours, python))
    return found


ROWS = rows()


def made(path: Path) -> Path:
    """A store in which each row has something to do."""
    path.mkdir()
    with eoslog.open(path / "data", create=True, config={"log.roll.ms": 7_000}) as store:
        store.create_topic("orders", partitions=2, config={"segment.ms": 5_000})
        for number in range(2):
            times = [NOON_MS, NOON_MS + 1, NOON_MS + 2]
            store.producer().append("orders", number, [b"a", b"b", b"c"], timestamps=times)
        store.consumer(group="billing").commit({ORDERS_0: 1})
    return path


def state_of(path: Path) -> dict[str, object]:
    """What the tools change: groups, topics with their settings, where partitions begin."""
    with eoslog.open(path / "data") as store:
        topics = store.topics()
        return {
            "settings": store.remembered,
            "groups": store.groups(),
            "topics": {name: (one.partitions, one.config) for name, one in topics.items()},
            "starts": {
                where: store.partition(*where).log_start_offset
                for one in topics.values()
                for where in one.topic_partitions()
            },
        }


def test_the_rows_are_found():
    assert len(ROWS) >= 37
    assert len({kafka for kafka, _, _ in ROWS}) == len(ROWS)
    assert {kafka.split()[0] for kafka, _, _ in ROWS} >= {
        *("kafka-consumer-groups.sh", "kafka-delete-records.sh"),
        *("kafka-topics.sh", "kafka-configs.sh"),
    }


@pytest.mark.parametrize(("kafka", "ours", "python"), ROWS, ids=[ours for _, ours, _ in ROWS])
def test_the_command_and_python_do_the_same(tmp_path, monkeypatch, kafka, ours, python):
    by_command, by_python = made(tmp_path / "command"), made(tmp_path / "python")
    before = state_of(by_command)
    (by_command / "offsets.json").write_text(OFFSETS_FILE)
    (by_command / "orders.properties").write_text("retention.ms=1000\n")
    monkeypatch.chdir(by_command)
    words = shlex.split(ours)
    assert words[0] == "eoslog"
    answer = call(*words[1:], EOSLOG_STORE="data")
    assert answer.status == DONE, answer
    changes = CHANGES.search(ours) is not None and not any(one in ours for one in CHANGE_NOTHING)
    assert (state_of(by_command) != before) is changes
    if python:
        with eoslog.open(by_python / "data") as store, store.consumer(group="billing") as consumer:
            exec(python, {"store": store, "consumer": consumer, "orders_0": ORDERS_0})
    assert state_of(by_python) == state_of(by_command)
