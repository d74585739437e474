"""Parameters of which the short form of the suite runs a few, and a soak the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def short_form(values: Iterable[Any], *short: Any) -> list[Any]:
    """For `parametrize`: all values, tuples if there are several names; `short` are in both."""
    soak = [value for value in values if value not in short]
    split = [value if isinstance(value, tuple) else (value,) for value in soak]
    return [*short, *(pytest.param(*one, marks=pytest.mark.soak) for one in split)]
