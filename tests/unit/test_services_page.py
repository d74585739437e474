"""docs/services.md: its programs do what the page promises, and its unit is one of systemd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from ast import literal_eval
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.waiting import eventually
from stores import values_of

import eoslog

PAGE = Path(__file__).parents[2] / "docs" / "services.md"
TEXT = PAGE.read_text(encoding="utf-8")
REPORTS, FAILS, WEB, WORKER = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
(UNIT,) = re.findall(r"^```ini\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def printed(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_place_of_a_record_is_reported(tmp_path):
    assert printed(REPORTS, tmp_path) == "orders-0 has it at offset 0\n"
    assert printed(REPORTS, tmp_path) == "orders-0 has it at offset 1\n"


def test_a_record_that_fails_is_set_aside(tmp_path):
    said = "b'seven' b\"invalid literal for int() with base 10: b'seven'\"\n"
    assert printed(FAILS, tmp_path) == said
    with eoslog.open(tmp_path / "services-data") as store:
        assert values_of(store, "bills") == [b"7 EUR", b"8 EUR"]


def in_another_process(expression: str, folder: Path) -> list[bytes]:
    code = "import eoslog\nwith eoslog.open('services-data') as store: print(repr({}))"
    return literal_eval(printed(code.format(expression), folder))


VALUES = "[one for batch in store.scan('bills') for one in batch['value'].to_pylist()]"


def test_the_service_answers_once_a_record_is_in_and_works_on_it(tmp_path, monkeypatch):
    pytest.importorskip("httpx")
    testclient = pytest.importorskip("fastapi.testclient")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "service"}
    exec(compile(WEB, "service.py", "exec"), names)
    with testclient.TestClient(names["app"]) as client:
        places = set()
        for number in range(20):
            answer = client.post("/orders", content=b"%d" % number)
            assert answer.status_code == 201
            places.add((answer.json()["partition"], answer.json()["offset"]))
        assert len(places) == 20
        eventually(lambda: len(in_another_process(VALUES, tmp_path)) == 20)
        assert client.get("/health").status_code == 200
        assert set(in_another_process(VALUES, tmp_path)) == {b"bill of %d" % n for n in range(20)}
        in_another_process("store.delete_topic('orders')", tmp_path)
        eventually(lambda: client.get("/health").status_code == 503)
        with pytest.raises(eoslog.errors.UnknownTopicOrPartitionError):
            client.__exit__()


@contextmanager
def worker(folder: Path):
    environment = {**os.environ, "STATE_DIRECTORY": str(folder)}
    with subprocess.Popen([sys.executable, "-c", WORKER], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def sizes_of_shares(store: eoslog.Store) -> list[int]:
    """How many partitions each member has, that has acknowledged it."""
    try:
        group = store.describe_group("billing")
    except eoslog.errors.GroupIdNotFoundError:
        return []
    return [len(one.partitions) for one in group.members if one.generation == group.generation]


def test_workers_share_the_orders_and_end_at_sigterm(tmp_path):
    path = tmp_path / "store"
    with worker(tmp_path) as first, worker(tmp_path) as second:
        eventually((path / "meta.properties").exists)
        with eoslog.open(path) as store:
            eventually(lambda: "orders-dead" in store.topics())
            eventually(lambda: sizes_of_shares(store) == [2, 2])
            with store.producer() as producer:
                for number in range(40):
                    producer.send("orders", b"%d" % number, partition=number % 4)
            eventually(lambda: len(values_of(store, "bills")) == 40)
            for process in (first, second):
                began_s = time.monotonic()
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
                assert time.monotonic() - began_s < 20
            assert sizes_of_shares(store) == []
            assert set(values_of(store, "bills")) == {b"bill of %d" % one for one in range(40)}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_the_unit_is_one_of_systemd(tmp_path):
    def verified(text: str) -> str:
        unit = tmp_path / "billing@.service"
        unit.write_text(text.replace("/opt/billing/venv/bin/python", sys.executable))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
        )
        return done.stdout + done.stderr + "failed" * done.returncode

    assert verified(UNIT) == ""
    assert "sometimes" in verified(UNIT.replace("Restart=on-failure", "Restart=sometimes"))
