"""The README's first example does what its comments say, however often it is run."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_first_example_can_be_run_again(tmp_path):
    example = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", example[1]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr


def test_every_link_holds_on_a_page_that_is_not_in_the_repository():
    links = re.findall(r"\]\(([^)]*)\)", README.read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith("https://")] == []


def test_every_page_that_it_names_is_there():
    named = re.findall(r"`((?:docs/)?[\w.-]+\.md|[\w/]+/)`", README.read_text(encoding="utf-8"))
    assert len(named) > 20
    folders = (README.parent, README.parent / "docs")
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []
