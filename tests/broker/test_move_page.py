"""`docs/move-to-kafka.md`, block by block: the store, the export, and Kafka's tools at a broker."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from cli_calls import call
from kafka_broker import run_tool

from eoslog.exchange.kafka_export import export_kafka

pytestmark = pytest.mark.broker

PAGE = Path(__file__).parents[2] / "docs" / "move-to-kafka.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-transactions.sh": "org.apache.kafka.tools.TransactionsCommand",
}
PRINTED = {
    "kafka-topics.sh": ("Topic: orders", "PartitionCount: 2", "retention.ms=-1", "Isr: 1"),
    "kafka-consumer-groups.sh": ("Consumer group 'bills' has no active members", "orders"),
    "kafka-transactions.sh": ("billing", "CompleteCommit"),
}


def test_the_page_does_what_it_says(make_broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [kind for kind, _ in blocks] == ["python", "console", "text", "text"]
    exec(compile(blocks[0][1], str(PAGE), "exec"), {})
    for part in re.split(r"^\$ ", blocks[1][1], flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        printed = call(*shlex.split(command)[1:]).stdout
        checker = doctest.OutputChecker()
        assert checker.check_output(expected, printed, doctest.ELLIPSIS), printed
    assert blocks[2][1] == "kafka-server-start.sh server.properties\n"
    broker = make_broker(logs=tmp_path / "kafka-logs")
    for line in blocks[3][1].splitlines():
        tool, *arguments = shlex.split(line)
        at = arguments.index("localhost:9092")
        arguments[at] = broker.bootstrap_servers
        printed = run_tool(TOOLS[tool], *arguments)
        assert all(words in printed for words in PRINTED[tool]), printed


def test_a_broker_starts_with_the_lines_that_the_export_prints(make_broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    exec(compile(blocks[0][1], str(PAGE), "exec"), {})
    done = export_kafka("data", "kafka-logs", node_id=7)
    given = dict(line.split("=", 1) for line in done.server_properties.splitlines())
    of_the_test = ("process.roles", "controller.quorum.voters", "listeners", "log.dirs")
    lines = {name: value for name, value in given.items() if name not in of_the_test}
    broker = make_broker(logs=tmp_path / "kafka-logs", config=lines, node_id=7)
    assert [one.value for one in broker.records("orders", 0)] == [b"first"]
