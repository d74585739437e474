"""What only reads writes nothing to the store, syncs nothing, and loads what it uses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED, call
from read_only_stores import unchanged

import eoslog
from eoslog import TopicPartition

COMMANDS = [
    ("topics",),
    ("topics", "list", "--internal"),
    ("topics", "describe", "t"),
    ("groups",),
    ("groups", "describe", "--all-groups", "--members"),
    ("groups", "reset-offsets", "g", "--topic", "t", "--to-earliest"),
    ("transactions",),
    ("transactions", "describe", "--transactional-id", "x"),
    ("transactions", "describe-producers", "--topic", "t", "--partition", "0"),
    ("transactions", "find-hanging"),
    ("transactions", "explain", "t"),
    ("producers",),
    ("config",),
    ("metrics",),
    ("consume", "t"),
    ("get-offsets",),
    ("get-offsets", "--time", "max-timestamp"),
    ("processes",),
    ("log-dirs",),
    ("top", "--once"),
    ("delete-records", "--offset", "t:0:1", "--dry-run"),
    ("verify",),
]
# What takes long to load, and only other commands and calls need.
UNUSED = {
    *("numpy", "pyarrow", "rich", "concurrent.futures", "difflib", "hashlib", "secrets", "shutil"),
    *("socket", "tempfile", "eoslog.consumer.consumer", "eoslog.producer.producer"),
    *("eoslog.staging.commit", "eoslog.staging.job", "eoslog.store.backup"),
}
SYNCS = "fsync,fdatasync,msync,sync_file_range,syncfs,io_submit"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("read") / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", 2)
        store.producer().append("t", 0, [b"one", b"two"])
        with store.producer(transactional_id="x") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"three", partition=1)
        store.consumer("g").commit({TopicPartition("t", 0): 1})
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_reading_command_leaves_the_store_as_it_is(path, command):
    with unchanged(path):
        assert call(*command, "--store", path).status == DONE


@pytest.mark.parametrize("command", [("topics",), ("groups",), ("transactions",)], ids=" ".join)
def test_a_listing_syncs_nothing_and_loads_what_it_uses(path, tmp_path, command):
    """In the store or beside it."""
    strace = shutil.which("strace")
    trace = tmp_path / "trace"
    script = (
        "import sys; from eoslog.cli import main; sys.argv[0] = 'eoslog'\n"
        "try: main()\n"
        f"finally: print(sorted({UNUSED} & sys.modules.keys()))"
    )
    traced = [strace, "-f", "-qq", "-e", f"trace={SYNCS}", "-o", str(trace)] if strace else []
    done = subprocess.run(
        [*traced, sys.executable, "-c", script, *command, "--store", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
    if strace:
        assert re.findall(r"\d+ +(\w+)\(", Path(trace).read_text()) == []


OPENED_SINCE = """
import sys, eoslog
from eoslog.cli import main, output

others, open_to_read, write = [], eoslog.open, output._NamedOutput.write

def open_late():
    if not others:
        others.append(open_to_read(sys.argv[2]))

def opened(path, **options):
    store = open_to_read(path, **options)
    open_late()
    return store

def written(self, data):
    open_late()
    return write(self, data)

if sys.argv[1] == "read":
    eoslog.open = opened
else:
    output._NamedOutput.write = written
main(["--store", *sys.argv[2:]])
"""


def run_opened_since(when: str, path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a closed store, which is opened once the command reads, or prints."""
    program = [sys.executable, "-c", OPENED_SINCE, when, str(path), *command]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_begins_again_if_a_process_opens_the_store(path, command):
    done = run_opened_since("read", path, *command)
    assert done.returncode == DONE, done.stderr
    assert "StoreReopenedError" not in done.stderr


def test_a_command_that_has_printed_does_not_begin_again(path, tmp_path):
    store_path = tmp_path / "store"
    shutil.copytree(path, store_path)
    with eoslog.open(store_path) as store:
        store.producer().append("t", 0, [b"%d" % number for number in range(10_000)])
    done = run_opened_since("print", store_path, "consume", "t")
    lines = done.stdout.splitlines()
    assert done.returncode == FAILED
    assert "StoreReopenedError" in done.stderr
    assert len(lines) == len({*lines}) > 0
