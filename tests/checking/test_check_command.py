"""`eoslog check`: its report, its JSON, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call
from planted import aborted_read
from simulated_log import World

from eoslog.checking import ANOMALIES


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return World(1).write(tmp_path / "clean.jsonl")


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    world = next(one for one in map(World, range(2, 50)) if aborted_read(one) is not None)
    return world.write(tmp_path / "broken.jsonl")


def test_a_clean_history_is_status_0(clean: Path) -> None:
    answer = call("check", clean)
    assert answer.status == DONE
    assert answer.stdout.startswith("clean: ")


def test_anomalies_are_status_1_and_named_with_their_lines(broken: Path) -> None:
    answer = call("check", broken, "--visible-within", "0")
    assert answer.status == FAILED
    lines = answer.stdout.splitlines()
    kind, _, count = lines[0].partition(": ")
    assert (kind, count) in {("aborted read", "1"), ("precommitted read", "1")}
    places = [line.strip() for line in lines if line.startswith(f"    {broken}:")]
    assert len(places) >= 2
    texts = broken.read_text().splitlines()
    for place in places:
        number, client = place.removeprefix(f"{broken}:").split()[:2]
        assert json.loads(texts[int(number) - 1])["client"] == client


def test_json_holds_all_of_it(broken: Path) -> None:
    for answer in (call("check", broken, "--json"), call("--json", "check", broken)):
        assert answer.status == FAILED
        assert answer.json["clean"] is False
        assert set(answer.json["found"]) == set(ANOMALIES)
        assert sum(answer.json["found"].values()) == len(answer.json["anomalies"]) == 1
        (anomaly,) = answer.json["anomalies"]
        assert {one["file"] for one in anomaly["operations"]} == {str(broken)}
    none = call("check", broken, "--json", "--examples", "0")
    assert none.json["anomalies"] == []
    assert sum(none.json["found"].values()) == 1


def test_bad_input_is_status_2(tmp_path: Path, clean: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"client": "a", "kind": "send"}\n')
    assert_mistake(call("check", clean, bad), WRONG_USE, f"{bad}, line 1, field 'outcome'")
    other = tmp_path / "other.bin"
    for content in (b"hello", b"\0" * 3_000_000, b"\x89PNG\r\n\x1a\n\0"):
        other.write_bytes(content)
        assert_mistake(call("check", clean, other), WRONG_USE, f"{other}, line 1: not JSON")
    assert_mistake(call("check", tmp_path / "none.jsonl"), WRONG_USE, "none.jsonl")
    assert_mistake(call("check", tmp_path), WRONG_USE, str(tmp_path))
    assert_mistake(call("check", "/proc/self/mem"), WRONG_USE, "/proc/self/mem: ")
    assert_mistake(call("check"), WRONG_USE, "FILES")
    assert_mistake(call("check", clean, "--clock-error", "-1"), WRONG_USE, "--clock-error")
