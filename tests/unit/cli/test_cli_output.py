"""Standard output whose reader has gone, or that takes no more: what the status says then."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED

import eoslog
from eoslog import TopicPartition

# More than a pipe holds, whoever reads it.
RECORDS = 3000
VALUE = b"x" * 100


@pytest.fixture(scope="module")
def full_store(tmp_path_factory) -> Path:
    """A store whose listings and records are longer than a pipe holds."""
    path = tmp_path_factory.mktemp("output") / "s"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t")
        for number in range(300):
            store.create_topic(f"{'long-name-of-a-topic' * 12}-{number}")
        with store.producer() as producer:
            for _ in range(RECORDS):
                producer.send("t", VALUE)
    return path


def run(command: str, store: Path, shell: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell that puts it in the place of {}."""
    call = f"{shlex.quote(sys.executable)} -m eoslog --store {shlex.quote(str(store))} {command}"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell.format(call)}"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | changes,
    )


COMMANDS = [
    "consume t",
    "--json consume t",
    "topics",
    "--json topics",
    "verify",
    "--json verify",
    "dump --print-data-log {store}/t-0/00000000000000000000.log",
    "--json dump --print-data-log {store}/t-0/00000000000000000000.log",
    "topics describe t",
]


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("command", [*COMMANDS, "--help", "consume --help"])
def test_a_reader_that_goes_is_no_failure(full_store, command):
    reader = "true" if command in ("verify", "--help") else "head -1"
    done = run(command.format(store=full_store), full_store, f"{{}} | {reader}")
    assert (done.returncode, done.stderr) == (DONE, "")


def test_a_reader_that_goes_is_no_failure_where_the_signal_ends_other_programs(full_store):
    shell = "trap - PIPE; {} | head -1"
    done = run("consume t", full_store, shell)
    assert (done.returncode, done.stderr) == (DONE, "")


@pytest.mark.parametrize("options", ["", "--json"])
def test_nothing_is_committed_for_a_reader_that_goes(full_store, options):
    group = f"g{options}"
    done = run(f"{options} consume t --group {group}", full_store, "{} | head -1")
    assert done.returncode == DONE
    assert len(done.stdout.splitlines()) == 1
    with eoslog.open(full_store) as store:
        assert group not in store.groups()
    done = run(f"{options} consume t --group {group}", full_store, "{} | cat")
    assert len(done.stdout.splitlines()) == RECORDS
    with eoslog.open(full_store) as store:
        assert store.groups()[group][TopicPartition("t", 0)].offset == RECORDS


@pytest.mark.parametrize("command", COMMANDS[-3:])
def test_a_full_disk_under_the_output_is_a_failure(full_store, command):
    done = run(command.format(store=full_store), full_store, "{} > /dev/full")
    assert done.returncode == FAILED
    assert done.stderr == "Error: standard output: No space left on device\n"


@pytest.mark.parametrize("options", ["", "--json"])
def test_nothing_is_committed_where_the_disk_is_full(full_store, options):
    assert run("consume t --group f", full_store, "{} > /dev/full").returncode == FAILED
    with eoslog.open(full_store) as store:
        assert "f" not in store.groups()


@pytest.mark.parametrize("command", ["verify", "--json verify"])
def test_what_verify_finds_is_its_status_though_nobody_reads_it(tmp_path, command):
    path = tmp_path / "s"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        with store.producer() as producer:
            producer.append("t", 0, [VALUE] * 10)
    log = path / "t-0" / "00000000000000000000.log"
    damaged = bytearray(log.read_bytes())
    damaged[200] ^= 1
    log.write_bytes(damaged)
    # The pipe has no reader when the command begins.
    for shell in ("{} | cat", "exec 3> >(true); wait $!; {} >&3"):
        done = run(command, path, shell)
        assert (done.returncode, done.stderr) == (FAILED, "")


def test_what_check_finds_is_its_status_though_nobody_reads_it(tmp_path):
    # Two records at one offset.
    history = tmp_path / "history.jsonl"
    history.write_text(
        "".join(
            f'{{"client":"p","op":{number},"kind":"send","topic":"t","partition":0,'
            f'"value":"v{number}","offset":0,"begin_ns":{number},"end_ns":{number},'
            '"outcome":"ok"}\n'
            for number in range(2)
        )
    )
    for shell in ("{} | cat", "exec 3> >(true); wait $!; {} >&3"):
        done = run(f"check {history}", tmp_path, shell)
        assert (done.returncode, done.stderr) == (FAILED, "")


def test_the_acknowledgement_of_produce_needs_no_reader(full_store, tmp_path):
    path = tmp_path / "s"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
    for command, stream in (("produce t", "2>&3"), ("--json produce t", ">&3")):
        shell = f"exec 3> >(true); wait $!; echo line | {{}} {stream}"
        done = run(command, path, shell)
        assert (done.returncode, done.stdout, done.stderr) == (DONE, "", "")
    with eoslog.open(path) as store:
        assert store.partition("t", 0).log_end_offset == 2


def test_a_mistake_is_a_failure_though_nobody_reads_it(full_store):
    done = run("consume nowhere", full_store, "{} 2>&1 | true")
    assert done.returncode == FAILED


@pytest.mark.parametrize("command", ["consume t", "topics", "verify"])
def test_an_output_that_is_closed_is_a_failure(full_store, command):
    done = run(command, full_store, "{} >&-")
    assert (done.returncode, done.stderr) == (FAILED, "Error: standard output: it is closed\n")
