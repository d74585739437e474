"""Check that a built site asks nothing of another host for styles, scripts, pictures and fonts.

    python tools/check_site.py build/docs

Links that a reader follows may lead anywhere.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

# What a browser fetches by itself for each element.
FETCHED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
ELSEWHERE = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^\s'\")]*)", re.IGNORECASE)
PAGES_MIN = 20


class Page(HTMLParser):
    """Collects what a browser would fetch from elsewhere for one page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in FETCHED.get(tag, ()) and ELSEWHERE.match(value or ""):
                self.found.append(f"<{tag} {name}={value}>")
            elif name == "style":
                self.found += IN_STYLE.findall(value or "")


def fetched_from_elsewhere(path: Path) -> list[str]:
    """Addresses on other hosts that a browser asks when it shows a file of the site."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".html":
        return IN_STYLE.findall(text)
    page = Page()
    page.feed(text)
    return page.found + [
        one
        for style in re.findall(r"<style.*?</style>", text, re.DOTALL)
        for one in IN_STYLE.findall(style)
    ]


def main() -> None:
    folder = Path(sys.argv[1])
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".css", ".html", ".svg")]
    pages = sum(path.suffix == ".html" for path in files)
    if pages < PAGES_MIN:
        raise SystemExit(f"error: {folder} has {pages} pages: build the site first")
    found = [f"{path}: {one}" for path in files for one in fetched_from_elsewhere(path)]
    if found:
        raise SystemExit("\n".join([*found, "error: the site asks another host"]))
    print(f"{folder}: {pages} pages ask nothing of another host")


if __name__ == "__main__":
    main()
