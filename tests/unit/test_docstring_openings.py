"""tools/docstring_openings.py finds each docstring that opens as a fragment, and no other."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "docstring_openings.py"

SOURCE = '''"""{module}"""

class Log:
    """{in_class}"""

    async def closed(self):
        """{method}

        What follows the first paragraph may open with any word.
        """

def undocumented():
    return "What is not a docstring."
'''
GOOD = {
    "module": "Offsets of a log.",
    "in_class": "Asynchronous log.",
    "method": "True if the log is closed.",
}


def run(*folders: Path) -> tuple[int, list[str]]:
    ended = subprocess.run(
        [sys.executable, TOOL, *folders], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stderr == "" or ended.returncode == 2
    return ended.returncode, ended.stdout.splitlines()


def test_sentences_and_noun_phrases_pass(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "log.py").write_text(SOURCE.format(**GOOD))
    assert run(tmp_path) == (0, ["docstrings: 3 of 3 open as a sentence or a noun phrase"])


@pytest.mark.parametrize(
    ("place", "line", "opening", "text"),
    [
        ("module", 1, "What", "What a log holds."),
        ("in_class", 4, "The same", "The same, but closed."),
        ("method", 7, "Whether", "Whether the log is closed."),
        ("method", 7, "As", "As `opened`."),
        ("method", 7, "So many", "So many bytes."),
    ],
)
def test_a_fragment_fails_with_its_file_and_line(tmp_path, place, line, opening, text):
    path = tmp_path / "log.py"
    path.write_text(SOURCE.format(**GOOD | {place: text}))
    (tmp_path / "sound.py").write_text(SOURCE.format(**GOOD))
    assert run(tmp_path) == (
        1,
        [
            f"{path}:{line}: a docstring opens with {opening!r}: {text}",
            "docstrings: 5 of 6 open as a sentence or a noun phrase",
        ],
    )


def test_a_folder_without_python_files_is_an_error(tmp_path):
    assert run(tmp_path)[0] == 2
