"""`docs/operations.md` names every metric that a store shows, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import eoslog
from eoslog.store.metric_families import metric_families

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
NAME = re.compile(r"\b(?:kafka|eoslog)_[a-z_]+[a-z]")
LABEL = re.compile(r"\b([a-z_]+)_total\{(\w+)=~?\"([^\"]+)\"\}")


def test_the_page_and_a_store_have_the_same_metrics(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    with eoslog.open(tmp_path / "store", create=True) as store:
        families = metric_families(store)
    samples = {name for family in families for name, _, _ in family.samples}
    samples |= {family.name for family in families if family.kind == "gauge"}
    of_page = set(NAME.findall(text)) - {"kafka_exporter", "eoslog_process"}
    assert of_page <= samples
    # Those of a histogram go by one of them.
    left_out = {one for one in samples - of_page if not one.endswith(("_count", "_sum", "_bucket"))}
    assert left_out == set()


def test_the_labels_of_its_expressions_have_these_values(tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        families = metric_families(store)
    found = LABEL.findall(PAGE.read_text(encoding="utf-8"))
    assert len(found) == 3
    for name, label, values in found:
        (family,) = [one for one in families if one.name == name]
        there = {labels[label] for _, labels, _ in family.samples}
        assert set(values.replace("\\", "").split("|")) <= there
