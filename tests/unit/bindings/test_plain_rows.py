"""Rows that are plain values or pairs, taken apart into columns; all others are left to others."""

from __future__ import annotations

from collections import namedtuple

import pytest

from eoslog.bindings.plain_rows import plain_columns

Pair = namedtuple("Pair", "key value")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], ([], None, 0)),
        ([b"a", b"bc"], ([b"a", b"bc"], None, 3)),
        ([b"a", None, "ä"], ([b"a", None, "ä".encode()], None, 3)),
        ([None], ([None], None, 0)),
        ([(b"k", b"v"), (None, None)], ([b"v", None], [b"k", None], 2)),
        ([("k", "v"), (b"", b"")], ([b"v", b""], [b"k", b""], 2)),
    ],
)
def test_plain_rows_become_columns(rows, expected):
    assert plain_columns(rows) == expected


@pytest.mark.parametrize(
    "odd",
    [
        1,
        bytearray(b"x"),
        memoryview(b"x"),
        "\ud800",
        (b"k",),
        (b"k", b"v", b"w"),
        (b"k", 1),
        (1, b"v"),
        (b"k", "\ud800"),
        ("\ud800", b"v"),
        [b"k", b"v"],
        {"value": b"v"},
        Pair(b"k", b"v"),
        type("Text", (str,), {})("x"),
    ],
)
@pytest.mark.parametrize("others", [[], [b"v"], [(b"k", b"v")]])
def test_rows_of_any_other_kind_are_not_taken(odd, others):
    assert plain_columns([*others, odd]) is None
    assert plain_columns([odd, *others]) is None


def test_values_and_pairs_do_not_mix():
    assert plain_columns([b"v", (b"k", b"v")]) is None
    assert plain_columns([(b"k", b"v"), b"v"]) is None
