"""The lines that eoslog logs at one level."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest


def lines_at(level: int, caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """A function that gives the lines at a level, from now on, that match a pattern."""
    caplog.set_level(level, logger="eoslog")

    def said(pattern: str) -> list[str]:
        lines = [one.getMessage() for one in caplog.records if one.levelno == level]
        assert not any("\n" in line for line in lines)
        return [line for line in lines if re.search(pattern, line)]

    return said
