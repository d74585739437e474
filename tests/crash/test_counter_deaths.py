"""What processes counted is in a store's totals once, whatever a fold dies at: counter_deaths."""

from __future__ import annotations

import pytest
from crash.numbered_calls import run

pytestmark = pytest.mark.crash


def test_each_page_is_in_the_totals_once_after_a_death_at_any_call(tmp_path):
    said = run("crash.counter_deaths", tmp_path, str(tmp_path))
    # Two folds, each with a new file, its write, its sync, a rename and a removal.
    assert int(said.split()[0]) >= 8
