"""Turn a run's results into the table of docs/benchmarks.md.

    python benches/report.py RESULTS.json                           prints it
    python benches/report.py RESULTS.json --update docs/benchmarks.md   puts it between the marks

Every number comes from the results that pytest-benchmark wrote; nothing is typed in by hand.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from figures import FIGURES, Figure

BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"
HEADING = ("| figure | to reach | measured | beside it |", "|---|---:|---:|---|")
MILLION = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the figures of a bench run as a table.")
    parser.add_argument("results", type=Path, help="what --benchmark-json wrote")
    parser.add_argument("--update", type=Path, help="a Markdown file to put the table into")
    arguments = parser.parse_args()
    text = make_report(json.loads(arguments.results.read_text()))
    print(text)
    if arguments.update is not None:
        update_page(arguments.update, text)


def make_report(results: dict[str, Any]) -> str:
    """The machine's facts and the table, as Markdown."""
    measured: dict[str, dict[str, Any]] = {}
    for bench in results["benchmarks"]:
        measured |= bench["extra_info"].get("figures", {})
    facts = results["machine_info"].get("eoslog", {})
    lines = [measured_on(results["datetime"][:10], facts), "", *HEADING]
    lines += [row(figure, measured.get(name)) for name, figure in FIGURES.items()]
    return "\n".join(lines)


def measured_on(day: str, facts: dict[str, Any]) -> str:
    """When and on what machine, as a sentence."""
    return (
        f"Measured on {day}; {'; '.join(f'{name}: {one}' for name, one in facts.items() if one)}."
    )


def row(figure: Figure, found: dict[str, Any] | None) -> str:
    """One line of the table."""
    cells = [figure.what, bound_of(figure), "not measured", ""]
    if found is not None:
        cells[2] = show(found["measured"], figure.unit)
        if "least" in found:
            least, greatest = (number(found[one], figure.unit) for one in ("least", "greatest"))
            cells[2] += f" [{least}, {greatest}]"
        if figure.reached(found["measured"]) is False:
            cells[2] = f"**no**: {cells[2]}"
        cells[3] = found.get("beside", "")
    return f"| {' | '.join(cells)} |"


def bound_of(figure: Figure) -> str:
    for sign, bound in (("≥", figure.at_least), ("≤", figure.at_most)):
        if bound is not None:
            shown = number(bound, figure.unit) if is_rate(figure.unit) else f"{bound:g}"
            return f"{sign}{with_unit(shown, figure.unit)}"
    return ""


def show(value: float, unit: str) -> str:
    """A value with its unit, as a person would write it."""
    return with_unit(number(value, unit), unit)


def with_unit(shown: str, unit: str) -> str:
    return f"{shown}\u00d7" if unit == "times" else f"{shown} {unit}"


def is_rate(unit: str) -> bool:
    """Whether a unit counts things in a second."""
    return unit in ("records/s", "batches/s")


def number(value: float, unit: str) -> str:
    if is_rate(unit):
        return f"{value / MILLION:.3g} M" if value >= MILLION else f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def update_page(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace what stands between two marks of a page."""
    page = path.read_text()
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"{path}: expected one {begin} and one {end}")
    before, rest = page.split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


if __name__ == "__main__":
    main()
