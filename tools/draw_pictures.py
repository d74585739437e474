"""Draw the pictures of docs/how-it-works.md into docs/pictures/.

    python tools/draw_pictures.py [FOLDER]

Their colours are variables, for a light and a dark page; on the site the page's theme sets them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
WIDTH = 480  # A phone shows it at three quarters of its size, where it is still read.
LIGHT = {
    "ink": "#1f2328",
    "muted": "#59636e",
    "line": "#8c959f",
    "grey": "#eff2f5",
    "blue": "#0969da",
    "blue-soft": "#ddf4ff",
    "green": "#1a7f37",
    "green-soft": "#dafbe1",
    "red": "#cf222e",
    "red-soft": "#ffebe9",
    "amber": "#9a6700",
    "amber-soft": "#fff8c5",
}
DARK = {
    "ink": "#e6edf3",
    "muted": "#a3abb4",
    "line": "#7d8590",
    "grey": "#262c33",
    "blue": "#6cb6ff",
    "blue-soft": "#143049",
    "green": "#57d364",
    "green-soft": "#12351f",
    "red": "#ff7b72",
    "red-soft": "#4a1d1f",
    "amber": "#e3b341",
    "amber-soft": "#3b2e0b",
}
KINDS = ("grey", "blue", "green", "red", "amber")
LINE_HEIGHT = 16


def variables(colours: dict[str, str]) -> str:
    return "".join(f"--p-{name}:{value};" for name, value in colours.items())


STYLE = (
    f"svg.picture{{{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{svg.picture{{{variables(DARK)}}}}}"
    f"body[data-theme=light] svg.picture{{{variables(LIGHT)}}}"
    f"body[data-theme=dark] svg.picture{{{variables(DARK)}}}"
    ".picture text{font:14px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;"
    "fill:var(--p-ink)}"
    ".picture .small{font-size:12.5px}.picture .bold{font-weight:600}"
    ".picture .code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
    "font-size:12px}"
    ".picture .muted{fill:var(--p-muted)}"
    ".picture rect,.picture path,.picture line{stroke-width:1.5;fill:none;stroke:var(--p-line)}"
    ".picture .dashed{stroke-dasharray:4 4}"
    + "".join(
        f".picture rect.{kind}{{fill:var(--p-{soft});stroke:var(--p-{edge})}}"
        f".picture .line-{kind}{{stroke:var(--p-{edge})}}"
        f".picture text.{kind}{{fill:var(--p-{text})}}"
        f".picture .head-{kind}{{fill:var(--p-{edge});stroke:none}}"
        for kind in KINDS
        for soft, edge, text in [
            ("grey", "line", "muted") if kind == "grey" else (f"{kind}-soft", kind, kind)
        ]
    )
)


class Picture:
    """A picture that grows by shapes; lengths are in its own units, of which its width has 480."""

    def __init__(self, title: str, height: int) -> None:
        self._title, self._height = title, height
        self._shapes: list[str] = []

    def svg(self) -> str:
        """The picture as a file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img" '
            f'viewBox="0 0 {WIDTH} {self._height}">\n<title>{escape(self._title)}</title>\n'
            f"<style>{STYLE}</style>\n" + "\n".join(self._shapes) + "\n</svg>\n"
        )

    def text(self, x: float, y: float, lines: str, kind: str = "", anchor: str = "middle") -> None:
        """Lines of text; y is the middle of the first."""
        for number, line in enumerate(lines.split("\n")):
            self._shapes.append(
                f'<text class="{kind}" x="{x:g}" y="{y + 5 + number * LINE_HEIGHT:g}" '
                f'text-anchor="{anchor}">{escape(line)}</text>'
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        label: str,
        kind: str = "grey",
        style: str = "small",
    ) -> None:
        """A box with lines of text in its middle."""
        edge = f"{kind} dashed" if "dashed" in style else kind
        self._shapes.append(
            f'<rect class="{edge}" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}" rx="5"/>'
        )
        middle = y + height / 2 - label.count("\n") * LINE_HEIGHT / 2
        self.text(x + width / 2, middle, label, style.replace("dashed", ""))

    def line(self, *points: tuple[float, float], kind: str = "grey", dashed: bool = False) -> None:
        """A line through points."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        style = f"line-{kind} dashed" if dashed else f"line-{kind}"
        self._shapes.append(f'<path class="{style}" d="{path}"/>')

    def arrow(self, *points: tuple[float, float], kind: str = "grey", dashed: bool = False) -> None:
        """A line through points, with a head at the last."""
        self.line(*points, kind=kind, dashed=dashed)
        (from_x, from_y), (x, y) = points[-2:]
        length = ((x - from_x) ** 2 + (y - from_y) ** 2) ** 0.5
        along_x, along_y = (x - from_x) / length * 9, (y - from_y) / length * 9
        corners = [
            (x, y),
            (x - along_x + along_y / 2, y - along_y - along_x / 2),
            (x - along_x - along_y / 2, y - along_y + along_x / 2),
        ]
        path = "M" + "L".join(f"{one_x:.1f} {one_y:.1f}" for one_x, one_y in corners) + "Z"
        self._shapes.append(f'<path class="head-{kind}" d="{path}"/>')

    def span(self, first_x: float, last_x: float, y: float, label: str, kind: str = "grey") -> None:
        """A bracket below something, with its label."""
        self.line((first_x, y - 6), (first_x, y), (last_x, y), (last_x, y - 6), kind=kind)
        self.text((first_x + last_x) / 2, y + 13, label, f"small {kind}")


def sequence_window() -> Picture:
    picture = Picture("A partition keeps the last five batches of each producer", 312)
    picture.text(10, 14, "Batches of one producer in orders-0, by sequence", "bold", "start")
    batches = [f"{first} to {first + 9}" for first in range(0, 70, 10)]
    for number, label in enumerate(batches):
        kind = "blue" if number >= 2 else "grey"
        picture.box(10 + number * 66, 34, 62, 34, label, kind)
    picture.span(142, 468, 82, "the window: the last five batches", "blue")
    picture.text(10, 124, "What comes next, and the answer", "bold", "start")
    for number, (batch, kind, answer, why) in enumerate(
        [
            (
                "40 to 49",
                "amber",
                "written once: the offsets of the first write",
                "a retry: in the window",
            ),
            ("70 to 79", "green", "appended; 20 to 29 leaves the window", "follows the last one"),
            ("90 to 99", "red", "refused: OutOfOrderSequenceError", "70 to 89 are missing"),
            ("0 to 9", "red", "refused: OutOfOrderSequenceError", "before the window"),
        ]
    ):
        y = 142 + number * 42
        picture.box(10, y, 62, 34, batch, kind)
        picture.arrow((78, y + 17), (106, y + 17), kind=kind)
        picture.text(116, y + 9, answer, "small", "start")
        picture.text(116, y + 26, why, "small muted", "start")
    return picture


def two_phase_commit() -> Picture:
    picture = Picture("One record decides a transaction over all its partitions", 376)
    decision = 262
    picture.text(112, 12, "a crash here:", "small muted")
    picture.text(112, 30, "aborted", "bold red")
    picture.text(374, 12, "a crash here:", "small muted")
    picture.text(374, 30, "completed", "bold green")
    picture.line((decision, 6), (decision, 322), kind="blue", dashed=True)
    for number, lane in enumerate(
        ("__transaction_state", "orders-0", "invoices-0", "__consumer_offsets")
    ):
        y = 62 + number * 66
        picture.text(10, y, lane, "code muted", "start")
        picture.line((10, y + 48), (470, y + 48))
    for number, label in enumerate(("records", "records", "offsets of a group")):
        y = 140 + number * 66
        picture.box(72, y, 128, 28, label, "grey")
        picture.box(316, y, 66, 28, "marker", "green")
    picture.box(10, 74, 76, 28, "Ongoing", "grey")
    picture.box(decision - 62, 74, 124, 28, "PrepareCommit", "blue", "small bold")
    picture.box(356, 74, 114, 28, "CompleteCommit", "green")
    picture.arrow((10, 326), (470, 326))
    picture.text(decision, 344, "the decision is on disk,", "small blue")
    picture.text(decision, 361, "and the records before it", "small blue")
    picture.text(470, 344, "readers see", "small muted", "end")
    picture.text(470, 361, "all of it", "small muted", "end")
    return picture


def fencing() -> Picture:
    picture = Picture("A successor fences the older producer", 336)
    old, log, new = 78, 240, 402
    for x, label, kind in (
        (old, "first process\nid billing", "grey"),
        (log, "the store", "blue"),
        (new, "second process\nid billing", "grey"),
    ):
        picture.box(x - 72, 6, 144, 42, label, kind, "small bold")
        picture.line((x, 48), (x, 328), dashed=True)
    picture.text((old + log) / 2, 66, "records, epoch 7", "small")
    picture.arrow((old, 80), (log - 2, 80), kind="green")
    picture.text((log + new) / 2 + 4, 100, "init_transactions()", "code")
    picture.arrow((new, 114), (log + 2, 114), kind="blue")
    picture.box(log - 84, 126, 168, 44, "aborts what is open,\nsyncs epoch 8", "blue")
    picture.arrow((log + 2, 186), (new - 2, 186), kind="blue")
    picture.text((log + new) / 2, 200, "epoch 8", "small muted")
    picture.text((old + log) / 2, 214, "commit, epoch 7", "small")
    picture.arrow((old, 228), (log - 2, 228), kind="red")
    picture.arrow((log - 2, 258), (old + 2, 258), kind="red", dashed=True)
    picture.text((old + log) / 2, 274, "ProducerFencedError", "small red")
    picture.text((log + new) / 2, 292, "records, epoch 8", "small")
    picture.arrow((new, 306), (log + 2, 306), kind="green")
    return picture


def last_stable_offset() -> Picture:
    picture = Picture(
        "Readers stop at the last stable offset, and skip what is in the abort index", 372
    )
    picture.text(10, 14, "The log of a partition", "bold", "start")
    cells = [
        ("A", "green"),
        ("A", "green"),
        ("B", "red"),
        ("✓", "green"),
        ("B", "red"),
        ("✗", "red"),
        ("", "grey"),
        ("C", "amber"),
        ("C", "amber"),
        ("", "grey"),
        ("C", "amber"),
    ]
    step, first = 41, 14
    stable, end = first + 7 * step - 1.5, first + 11 * step - 3
    for number, (label, kind) in enumerate(cells):
        x = first + number * step
        picture.text(x + 19, 36, str(20 + number), "small muted")
        picture.box(x, 46, 38, 34, label, kind, "bold")
    for label, kind, x in (
        ("A: committed at 23", "green", 14),
        ("B: aborted at 25", "red", 164),
        ("C: open", "amber", 306),
    ):
        picture.text(x, 96, label, f"small {kind}", "start")
    picture.text(14, 116, "✓ ✗ markers that end a transaction", "small muted", "start")
    picture.line((stable, 26), (stable, 340), kind="blue", dashed=True)
    picture.text(10, 158, "Abort index", "bold", "start")
    picture.box(14, 170, 243, 30, "B: from 22 to 25", "red")
    picture.text(10, 228, "What read_committed returns", "bold", "start")
    for number, shown in enumerate((True, True, False, False, False, False, True)):
        x = first + number * step
        if shown:
            picture.box(x, 240, 38, 34, str(20 + number), "green")
        else:
            picture.box(x, 240, 38, 34, "", "grey", "small dashed")
    picture.text(stable + 12, 250, "nothing yet: C may still", "small muted", "start")
    picture.text(stable + 12, 266, "commit or abort", "small muted", "start")
    picture.span(14, stable - 2, 292, "read_committed", "blue")
    picture.span(14, end, 324, "", "grey")
    picture.text(14, 338, "read_uncommitted", "small muted", "start")
    picture.text(stable, 356, "last stable offset, 27", "small blue bold")
    picture.text(end, 338, "log end, 31", "small muted", "end")
    return picture


def staged_jobs() -> Picture:
    picture = Picture("A job's files enter the log by one decision", 418)
    picture.box(6, 72, 468, 76, "", "grey", "small dashed")
    for number, (label, kind) in enumerate(
        [
            ("task 0", "grey"),
            ("task 1\nkilled", "red"),
            ("task 1\nsecond try", "grey"),
            ("task 2", "grey"),
        ]
    ):
        x = 14 + number * 116
        picture.box(x, 6, 104, 42, label, kind)
        picture.arrow((x + 52, 48), (x + 52, 84), kind=kind)
    for number, (label, kind) in enumerate(
        [("a file", "amber"), ("part of a file", "red"), ("a file", "amber"), ("a file", "amber")]
    ):
        picture.box(14 + number * 116, 86, 104, 30, label, kind)
    picture.text(240, 133, "staging/: no reader sees these files", "small muted")
    picture.arrow((240, 148), (240, 176), kind="blue")
    picture.text(252, 162, "messages name the files", "small muted", "start")
    picture.box(
        96,
        178,
        288,
        46,
        "one record decides:\nnightly, version 20260131, these files",
        "blue",
        "small bold",
    )
    picture.arrow((240, 224), (240, 262), kind="green")
    picture.text(252, 242, "whole files become segments", "small muted", "start")
    for number in range(3):
        y = 266 + number * 38
        picture.text(14, y + 15, f"purchases-{number}", "code muted", "start")
        picture.box(110, y, 146, 30, "what was there", "grey")
        picture.box(260, y, 206, 30, "the job's records", "green")
    picture.text(240, 394, "before the decision none of it is visible, after it all of it", "small")
    return picture


def durability_modes() -> Picture:
    picture = Picture("What each durability keeps, and from when on", 330)
    appended, flushed, written = 150, 262, 380
    for x, label in (
        (appended, "append\nreturns"),
        (flushed, "flush or commit\nreturns"),
        (written, "the kernel\nwrote it"),
    ):
        picture.text(x, 12, label, "small muted")
        picture.line((x, 40), (x, 268), dashed=True)
    for number, (name, from_x, kept) in enumerate(
        [
            ("always", appended, "survives a power cut"),
            ("commit", flushed, "survives a power cut"),
            ("process", written, "power cut"),
        ]
    ):
        y = 52 + number * 76
        picture.text(10, y + 22, name, "bold", "start")
        picture.text(10, y + 40, "(default)" if name == "commit" else "", "small muted", "start")
        picture.box(appended, y, 470 - appended, 26, "survives a killed process", "amber")
        picture.box(from_x, y + 30, 470 - from_x, 26, kept, "green")
    picture.arrow((appended - 70, 284), (470, 284))
    picture.text(appended - 70, 300, "send", "small muted")
    picture.text(462, 300, "time", "small muted", "end")
    picture.text(
        10,
        320,
        "Before append returns, a record of send is in the memory of its process.",
        "small muted",
        "start",
    )
    return picture


ALL: Sequence[Callable[[], Picture]] = (
    sequence_window,
    two_phase_commit,
    fencing,
    last_stable_offset,
    staged_jobs,
    durability_modes,
)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for draw in ALL:
        name = draw.__name__.replace("_", "-")
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
