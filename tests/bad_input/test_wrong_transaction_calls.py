"""Wrong arguments to a transaction's entry: a named error, never the end of the interpreter."""

from __future__ import annotations

from test_wrong_calls import run_child


def test_entry(tmp_path):
    found = run_child("wrong_transaction_calls.py", tmp_path)
    assert found["complaints"] == []
    assert found["count"] >= 5000, "fewer calls were made than there are"
