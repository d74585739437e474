"""A table in a pipe is the one that rich prints there."""

from __future__ import annotations

import pytest

from eoslog.cli.table import print_rich_rows, print_rows

TABLES = [
    (("topic", "partitions"), []),
    (("topic", "partitions"), [["orders", 2], ["a-longer-name", 100_000]]),
    (("group", "last_stable offset", "n"), [["g", -1, "text"], ["line\nbreak\x1b", 12, ""]]),
    (("id", "partitions"), [["x", ["t-0", "t-1"]], ["", []]]),
    (("n",), [[1.5], [20]]),
]


@pytest.mark.parametrize("title", [None, "orders"])
@pytest.mark.parametrize(("columns", "rows"), TABLES)
def test_it_looks_the_same(capsys, monkeypatch, columns, rows, title):
    print_rows(columns, rows, title=title)
    plain = capsys.readouterr().out
    print_rich_rows(columns, [list(row) for row in rows], title)
    assert plain == capsys.readouterr().out


def test_what_is_not_one_wide_each_goes_by_rich(capsys):
    print_rows(("name", "n"), [["漢字", 1], ["ab", 2]])
    assert capsys.readouterr().out.splitlines()[2:] == [" 漢字   1 ", " ab     2 "]
