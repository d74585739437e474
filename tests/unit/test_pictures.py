"""The pictures of docs/how-it-works.md are those that their tool draws."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def test_the_pictures_are_as_they_are_drawn(tmp_path):
    subprocess.run([sys.executable, ROOT / "tools" / "draw_pictures.py", tmp_path], check=True)
    kept, drawn = (
        {path.name: path.read_text() for path in folder.glob("*.svg")}
        for folder in (ROOT / "docs" / "pictures", tmp_path)
    )
    assert kept == drawn
    for text in drawn.values():
        ElementTree.fromstring(text)
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    assert sorted(re.findall(r"\(pictures/([\w-]+\.svg)\)", page)) == sorted(drawn)
