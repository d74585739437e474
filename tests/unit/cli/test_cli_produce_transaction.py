"""`eoslog produce --transactional-id`: all lines of a run, or none."""

import pytest
from cli_calls import DONE, FAILED, assert_mistake, call

import eoslog
from eoslog.cli.records import produce as cli_produce


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=2)
    return path


def produce(path, stdin, *options):
    words = ("produce", "orders", "--transactional-id", "till", *options, "--store", path)
    return call(*words, stdin=stdin)


def shown(path):
    return call("consume", "orders", "--store", path).stdout.splitlines()


def test_all_lines_are_one_transaction(path):
    answer = produce(path, "1\n2\n3\n")
    assert answer.status == DONE
    assert "3 records appended to orders, in one transaction" in answer.stderr
    assert sorted(shown(path)) == ["1", "2", "3"]
    (one,) = call("transactions", "--json", "--store", path).json
    assert (one["transactional_id"], one["transaction_state"]) == ("till", "CompleteCommit")


def test_a_bad_line_leaves_none_of_them(path):
    answer = produce(path, "k:1\n2\n", "--key-separator", ":")
    assert_mistake(answer, FAILED, "line 2", "the transaction is aborted")
    assert shown(path) == []
    assert produce(path, "k:3\n", "--key-separator", ":").status == DONE
    assert shown(path) == ["3"]


class Interrupted:
    def __iter__(self):
        yield b"one\n"
        raise KeyboardInterrupt


def test_ctrl_c_leaves_none_of_them(path, monkeypatch):
    monkeypatch.setattr(cli_produce, "standard_input", Interrupted)
    answer = produce(path, None)
    assert answer.status == FAILED
    assert answer.stderr.splitlines()[0] == "stopped at line 2: the transaction is aborted"
    assert shown(path) == []


def test_no_line_is_no_transaction(path):
    assert produce(path, "").status == DONE
    assert shown(path) == []
