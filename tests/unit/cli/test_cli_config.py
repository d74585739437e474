"""`eoslog config`: what a store remembers."""

import pytest
from cli_calls import DONE, WRONG_USE, assert_mistake, call

import eoslog


@pytest.fixture
def path(tmp_path):
    with eoslog.open(tmp_path / "store", create=True):
        pass
    return tmp_path / "store"


def test_it_is_shown_and_changed(path, tmp_path):
    shown = call("config", "--store", path)
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert (shown.status, lines[0]) == (DONE, ["durability", "commit"])
    assert ["log.retention.ms", "-1", "default"] in lines
    file = tmp_path / "store.properties"
    file.write_text("log.retention.ms=5\nlog.segment.bytes=4096\n")
    changed = call("config", "--store", path, "--config-file", file, "--durability", "always")
    assert ["log.retention.ms", "5", "store"] in [
        one.split() for one in changed.stdout.splitlines()
    ]
    answer = call("config", "--store", path, "--delete-config", "log.segment.bytes", "--json")
    assert answer.json == {"durability": "always", "config": {"log.retention.ms": 5}}
    with eoslog.open(path) as store:
        assert store.durability == "always"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--config", "retention.ms=5"], "retention.ms"),
        (["--delete-config", "nothing"], "nothing"),
        (["--durability", "never"], "never"),
    ],
)
def test_a_mistake_changes_nothing(path, options, word):
    assert_mistake(call("config", "--store", path, *options), WRONG_USE, word)
    with eoslog.open(path) as store:
        assert (store.remembered.durability, dict(store.remembered.config)) == ("commit", {})
