"""Where the close of a store fails, on a full disk say, what was read is printed all the same."""

import shutil
import sys

import pytest
from cli_calls import DONE, FAILED, call

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StoreFullError
from eoslog.store.files import StoreFiles

# What only reads closes nothing.
COMMANDS = [
    ("groups", "reset-offsets", "g", "--topic", "t", "--to-earliest", "--execute"),
    ("consume", "t", "--group", "h"),
    ("config", "--config", "log.retention.ms=1000"),
]
CHANGES = [
    (("topics", "delete", "t", "--yes"), "deleted t"),
    (("groups", "delete", "g", "--yes"), "deleted g"),
    (("transactions", "abort", "--transactional-id", "x"), "aborted x"),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        store.producer().append("t", 0, [b"one", b"two"])
        with store.producer(transactional_id="x") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"three")
        store.consumer("g").commit({TopicPartition("t", 0): 1})
    return path


@pytest.fixture
def failing_close(monkeypatch):
    """Each close fails from now on, after what it does; what standard output had by then."""
    had = []
    whole = StoreFiles.close

    def close(self):
        had.append(sys.stdout.buffer.getvalue())  # Of the runner: what was flushed.
        return [*whole(self), StoreFullError("closing it: no space left")]

    def begin():
        monkeypatch.setattr(StoreFiles, "close", close)
        return had

    return begin


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("as_json", [True, False])
def test_results_come_before_the_error_of_the_close(path, failing_close, command, as_json):
    command = (*command, *["--json"] * as_json, "--store")
    copy = shutil.copytree(path, path.with_name("copy"))
    sound = call(*command, copy)
    assert sound.status == DONE
    had = failing_close()
    answer = call(*command, path)
    assert answer.status == FAILED
    assert answer.stderr.splitlines()[-1].startswith("Error: closing it: no space left")
    assert had[-1].decode() == answer.stdout == sound.stdout
    if as_json:
        assert answer.json_lines == sound.json_lines


@pytest.mark.parametrize(("command", "done"), CHANGES, ids=[" ".join(one) for one, _ in CHANGES])
def test_what_was_changed_is_told_too(path, failing_close, command, done):
    failing_close()
    answer = call(*command, "--store", path)
    assert (answer.status, answer.stdout) == (FAILED, f"{done}\n")
    assert "no space left" in answer.stderr


def test_an_error_of_the_work_comes_first(path, failing_close):
    failing_close()
    answer = call("topics", "alter", "none", "--partitions", "2", "--store", path, "--json")
    assert (answer.status, answer.stdout) == (FAILED, "")
    assert "'none'" in answer.stderr
    assert "closing the store failed too: closing it: no space left" in answer.stderr
