"""Every input that ever taught a fuzzer something, or broke a decoder, through its target."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness.fork import in_child

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.all_targets import TARGETS
from fuzz.targets import folder

CORPUS = Path(__file__).parent / "corpus"
CORPUS_BYTES_MAX = 100_000
DEEP = b"[" * 100_000
# Neither is any of the formats.
ANYWHERE = (b"", b"\x00" * 70, b"\xff" * 300, b"{}", b'{"version":1}', DEEP)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_takes_its_corpus(target):
    files = sorted((CORPUS / target).glob("*"))
    inputs = [path.read_bytes() for path in files]

    def run() -> None:
        for path, data in [*zip(files, inputs, strict=True), *((data, data) for data in ANYWHERE)]:
            try:
                TARGETS[target](data)
            except Exception as error:
                named = path.name if isinstance(path, Path) else path[:20]
                raise AssertionError(f"{target}: {named!r}: {error!r}") from error

    folder()  # A child leaves its own behind.
    in_child(run)


def test_the_corpus_is_small_and_every_part_of_it_has_a_target():
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} <= set(TARGETS)
    assert sum(path.stat().st_size for path in files) < CORPUS_BYTES_MAX


def test_a_fault_of_a_target_is_seen():
    """An error that is documented is not one, and any other is."""
    from fuzz.targets import target

    @target(ValueError)
    def broken(data: bytes) -> None:
        raise KeyError(data) if data else ValueError("documented")

    try:
        TARGETS["broken"](b"")
        with pytest.raises(KeyError):
            TARGETS["broken"](b"x")
    finally:
        del TARGETS["broken"]
