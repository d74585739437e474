"""The table that the bench results become."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHES = Path(__file__).resolve().parents[2] / "benches"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHES)
    import report

    return report


def results_with(name: str, figure: dict[str, Any]) -> dict[str, Any]:
    return {
        "datetime": "2026-01-02T03:04:05",
        "machine_info": {"eoslog": {"processor": "one of them"}},
        "benchmarks": [{"extra_info": {}}, {"extra_info": {"figures": {name: figure}}}],
    }


def row_of(report: ModuleType, name: str, figure: dict[str, Any]) -> list[str]:
    text = report.make_report(results_with(name, figure))
    what = report.FIGURES[name].what
    (line,) = [one for one in text.splitlines() if one.startswith(f"| {what} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("name", "measured", "shown"),
    [
        ("append_1kb", 4.0, "4.00 GB/s"),
        ("append_1kb", 3.99, "**no**: 3.99 GB/s"),
        ("append_100b", 20e6, "20 M records/s"),
        ("append_100b", 19.9e6, "**no**: 19.9 M records/s"),
        ("producer_held", 256, "256 bytes"),
        ("producer_held", 257, "**no**: 257 bytes"),
        ("poll", 54_321, "54,321 records/s"),
    ],
)
def test_a_row_says_whether_the_bound_was_kept(
    report: ModuleType, name: str, measured: float, shown: str
) -> None:
    cells = row_of(report, name, {"measured": measured})
    assert cells[2] == shown


def test_a_row_shows_the_spread_and_what_stood_beside_it(report: ModuleType) -> None:
    figure = {"measured": 5.0, "least": 4.5, "greatest": 12.25, "beside": "write(): 3 GB/s"}
    cells = row_of(report, "append_1kb", figure)
    assert cells[1] == "≥4 GB/s"
    assert cells[2] == "5.00 GB/s [4.50, 12.2]"
    assert cells[3] == "write(): 3 GB/s"


def test_a_figure_without_a_result_is_no_number(report: ModuleType) -> None:
    text = report.make_report(results_with("append_1kb", {"measured": 5.0}))
    assert text.count("not measured") == len(report.FIGURES) - 1


def test_an_update_changes_what_stands_between_the_marks_alone(
    report: ModuleType, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.update_page(page, "new")
    report.update_page(page, "newer")
    assert page.read_text() == f"before\n{report.BEGIN}\n\nnewer\n\n{report.END}\nafter\n"


def test_a_page_without_marks_is_refused(report: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks\n")
    with pytest.raises(SystemExit, match="expected one"):
        report.update_page(page, "new")
    assert page.read_text() == "no marks\n"


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [(range(1, 101), 0.99, 99), (range(1, 101), 0.5, 50), ([7], 0.99, 7), ([3, 1, 2], 1.0, 3)],
)
def test_a_percentile_is_the_least_value_that_the_share_does_not_exceed(
    report: ModuleType, values: Any, share: float, expected: float
) -> None:
    from measure import percentile

    assert percentile(list(values), share) == expected


def test_a_figure_that_is_not_listed_is_refused(report: ModuleType) -> None:
    from measure import record

    with pytest.raises(ValueError, match="no figure"):
        record(None, "append_1_kb", 1.0)
