"""Cython's own page of each engine module: no line but the first may talk to the interpreter."""

import re
import shutil
from pathlib import Path

import pytest
from Cython.Compiler.Main import CompilationOptions, compile_single

ROOT = Path(__file__).resolve().parents[2]
STAGED_PXD = ROOT / "build" / "pxd"
MODULES = sorted((ROOT / "native").glob("*.pyx"))
SCORED_LINE = re.compile(
    r'class="cython line score-(\d+)"[^>]*>[^<]*<span class="">(\d+)</span>: (.*)'
)
TAG = re.compile(r"<[^>]+>")


def yellow_lines(source: Path, folder: Path) -> list[tuple[int, str]]:
    """Line number and text of each line that uses the interpreter, as `cython -a` marks them."""
    copy = folder / source.name
    shutil.copy(source, copy)
    options = CompilationOptions(
        annotate=True,
        include_path=[str(STAGED_PXD)],
        language_level=3,
        output_file=str(folder / f"{source.stem}.c"),
    )
    name = f"eoslog.native.{source.stem}"
    result = compile_single(str(copy), options, full_module_name=name)
    assert result.num_errors == 0
    page = (folder / f"{source.stem}.html").read_text(encoding="utf-8")
    scored = SCORED_LINE.findall(page)
    assert len(scored) >= len(source.read_text(encoding="utf-8").splitlines())
    return [(int(line), TAG.sub("", text)) for score, line, text in scored if int(score) > 0]


@pytest.mark.long
@pytest.mark.parametrize("source", MODULES, ids=lambda path: path.stem)
def test_the_engine_uses_the_interpreter_on_its_first_line_only(source, tmp_path):
    assert [(line, text) for line, text in yellow_lines(source, tmp_path) if line != 1] == []


def test_a_line_that_uses_the_interpreter_is_found(tmp_path):
    source = tmp_path / "written" / "objects.pyx"
    source.parent.mkdir()
    source.write_text("cdef object twice(object value):\n    return value + value\n")
    assert [line for line, _ in yellow_lines(source, tmp_path) if line != 1] == [2]
