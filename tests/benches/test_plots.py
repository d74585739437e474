"""The drawings that the bench results become."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

BENCHES = Path(__file__).resolve().parents[2] / "benches"
RESULTS = {
    "datetime": "2026-01-02T03:04:05",
    "machine_info": {"eoslog": {"processor": "one of them", "load of the machine": "0.25"}},
    "benchmarks": [
        {"extra_info": {}},
        {"extra_info": {"figures": {"append_1kb": {"measured": 5.25, "least": 4, "greatest": 6}}}},
        {"extra_info": {"figures": {"append_1kb_list": {"measured": 3.5}}}},
    ],
}


@pytest.fixture
def plots(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHES)
    import plots

    return plots


def test_what_was_measured_is_drawn_with_its_number(plots, monkeypatch, tmp_path):
    results = tmp_path / "results.json"
    results.write_text(plots.json.dumps(RESULTS))
    monkeypatch.setattr(sys, "argv", ["plots.py", str(results), str(tmp_path / "plots")])
    plots.main()
    (path,) = (tmp_path / "plots").iterdir()
    assert path.name == "bytes-a-second.svg"
    texts = {one.text for one in ElementTree.parse(path).iter() if one.tag.endswith("}text")}
    assert {"5.25", "columnar append, 1 KB values, 1,000 a batch, Arrow"} <= texts
    assert {"3.50", "columnar append, from a list of bytes"} <= texts
    assert "2026-01-02; one of them; load of the machine 0.25" in texts
    # Every colour is one that a page's theme sets.
    assert "#0" not in path.read_text()


def test_durable_commits_are_drawn(plots, monkeypatch, tmp_path):
    from durable import Results, Round

    rounds = {"sqlite": [Round(), Round()], "transaction_1": [Round(), Round()]}
    for one, seconds in zip(
        [*rounds["sqlite"], *rounds["transaction_1"]], (4, 2, 2, 1), strict=True
    ):
        one.seconds, one.latencies_ns = seconds, [1] * 2_000
    commits = Results(rounds, {}).rates()
    results = tmp_path / "results.json"
    results.write_text(plots.json.dumps({**RESULTS, "benchmarks": [], "commits": commits}))
    monkeypatch.setattr(sys, "argv", ["plots.py", str(results), str(tmp_path / "plots")])
    plots.main()
    (path,) = (tmp_path / "plots").iterdir()
    assert path.name == "commits-a-second.svg"
    texts = {one.text for one in ElementTree.parse(path).iter() if one.tag.endswith("}text")}
    assert {"SQLite, WAL, FULL", "750", "eoslog, transaction, 1 thread", "1500"} <= texts
