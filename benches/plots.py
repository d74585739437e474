"""Draw the rates of a bench run: bytes and records a second, each with its range and its bound.

    python benches/plots.py RESULTS.json docs/plots

Every number comes from the results that pytest-benchmark, or benches/durable.py, wrote. The
colours are variables, for a light and a dark page.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from figures import FIGURES, Figure
from matplotlib import pyplot
from report import MILLION, number

mpl.use("svg")
# One drawing for each: its file, and what the numbers are divided by.
DRAWN = {
    "GB/s": ("bytes-a-second", 1.0, "GB/s"),
    "records/s": ("records-a-second", MILLION, "million records/s"),
    "commits/s": ("commits-a-second", 1.0, "durable commits/s"),
}
# What stands for a colour until the file is written: light, dark.
COLOURS = {
    "#010101": ("ink", "#1f2328", "#e6edf3"),
    "#020202": ("muted", "#59636e", "#a3abb4"),
    "#030303": ("bar", "#54aeff", "#1f6feb"),
    "#040404": ("bound", "#cf222e", "#ff7b72"),
}
INK, MUTED, BAR, BOUND = COLOURS
WIDTH_INCHES, ROW_INCHES = 5.2, 0.5
STYLE = {
    "font.size": 9.5,
    "svg.fonttype": "none",  # Text stays text.
    "svg.hashsalt": "eoslog",
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the rates of a bench run.")
    parser.add_argument(
        "results", type=Path, help="what --benchmark-json, or --json of durable.py, wrote"
    )
    parser.add_argument("folder", type=Path, help="where the SVG files go")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for unit, (name, _, _) in DRAWN.items():
        measured = rates(results, unit)
        if measured:
            path = arguments.folder / f"{name}.svg"
            draw(path, measured, unit, when(results))


def rates(results: dict[str, Any], unit: str) -> list[tuple[str, Figure, dict[str, Any]]]:
    """What was measured in a unit: its words in full, its figure, its values."""
    if unit == "commits/s":
        return [
            (one["what"].replace("`", ""), Figure(one["what"], unit), one)
            for one in results.get("commits", [])
        ]
    found: dict[str, dict[str, Any]] = {}
    for bench in results.get("benchmarks", []):
        found |= bench["extra_info"].get("figures", {})
    rows, before = [], ""
    for name, figure in FIGURES.items():
        # "The same" is what stands above it in the table, measured or not.
        before = figure.what if not figure.what.startswith("the same") else before
        if name in found and figure.unit == unit:
            rest = figure.what.removeprefix("the same")
            words = (
                figure.what if rest == figure.what else f"{before.split(',')[0]},{rest.lstrip(',')}"
            )
            rows.append((words, figure, found[name]))
    return rows


def when(results: dict[str, Any]) -> str:
    """The day and the machine, with its load."""
    facts = results["machine_info"].get("eoslog", {})
    kept = [f"{facts[name]}" for name in ("processor",) if facts.get(name)]
    load = [f"{name} {one}" for name, one in facts.items() if name.startswith("load")]
    return "; ".join([results["datetime"][:10], *kept, *load])


def draw(
    path: Path, measured: list[tuple[str, Figure, dict[str, Any]]], unit: str, when: str
) -> None:
    """Write a file of horizontal bars, the first measured on top."""
    _, divisor, label = DRAWN[unit]
    with mpl.rc_context(STYLE):
        drawing, axes = pyplot.subplots(
            figsize=(WIDTH_INCHES, ROW_INCHES * len(measured) + 0.8), layout="constrained"
        )
        for row, (words, figure, values) in enumerate(measured):
            axes.barh(row, values["measured"] / divisor, height=0.4, color=BAR)
            if "least" in values:
                least, greatest = (values[one] / divisor for one in ("least", "greatest"))
                axes.hlines(row, least, greatest, colors=MUTED)
            if figure.at_least is not None:
                bound = figure.at_least / divisor
                axes.vlines(bound, row - 0.2, row + 0.2, colors=BOUND, linewidth=2)
            place = {"va": "center", "transform": axes.get_yaxis_transform()}
            axes.text(0, row - 0.42, words, **place)
            axes.text(
                1, row - 0.42, number(values["measured"], unit), ha="right", weight="bold", **place
            )
        axes.set_yticks([])
        axes.set_ylim(len(measured) - 0.6, -0.7)
        bound_too = ", bound (red)" if any(one.at_least for _, one, _ in measured) else ""
        axes.set_xlabel(f"{label}: median, range (grey){bound_too}\n{when}", loc="left")
        axes.spines[["top", "right", "left"]].set_visible(False)
        drawing.savefig(
            path, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
        pyplot.close(drawing)
    path.write_text(with_variables(path.read_text()))


def with_variables(svg: str) -> str:
    """The file with variables in the place of its colours, that a page's theme may set."""
    for marker, (name, _, _) in COLOURS.items():
        svg = svg.replace(marker, f"var(--plot-{name})")
    light, dark = (
        "".join(f"--plot-{name}:{colours[number]};" for name, *colours in COLOURS.values())
        for number in (0, 1)
    )
    style = (
        f"svg.plot{{{light}}}@media (prefers-color-scheme:dark){{svg.plot{{{dark}}}}}"
        f"body[data-theme=light] svg.plot{{{light}}}body[data-theme=dark] svg.plot{{{dark}}}"
    )
    head, _, rest = svg.partition("<svg ")
    opening, _, rest = rest.partition(">")
    return f'{head}<svg class="plot" {opening}>\n<style>{style}</style>{rest}'


if __name__ == "__main__":
    main()
