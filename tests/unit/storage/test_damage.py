"""A segment's file that somebody else renamed: `verify` tells what recovery cut off."""

import pytest
from unclean_stops import as_of_a_crash

import eoslog
from eoslog.storage.damage import misnamed_segment


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("rows")
        with store.producer() as producer:
            producer.append("rows", 0, [b"%d" % number for number in range(100)])
    as_of_a_crash(path)
    return path


def renamed(path, base_offset):
    log = path / "rows-0" / f"{0:020d}.log"
    log.rename(log.with_name(f"{base_offset:020d}.log"))


@pytest.mark.parametrize("base_offset", [1, 99, 100, 101, 123])
def test_a_renamed_segment_is_told(path, base_offset):
    renamed(path, base_offset)
    with eoslog.open(path) as store:
        assert store.partition("rows", 0).log_end_offset == base_offset
        told = " ".join(str(problem) for problem in store.verify())
        assert f"segment of offset {base_offset}" in told
        assert "kept as" in told
    assert len(list(path.glob(f"state/cut/rows-0/{base_offset:020d}.log.0.*"))) == 1


def test_a_torn_batch_is_no_other_segment(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    assert misnamed_segment(kept, 100) is None
    cut = kept / f"{100:020d}.log.0.1"
    for content in (b"", b"\0" * 11, b"\0" * 200, b"\xff" * 200, bytes(11) + b"\x20" + b"x" * 80):
        cut.write_bytes(content)
        assert misnamed_segment(kept, 100) is None


@pytest.mark.parametrize(
    "name",
    [f"{0:020d}.log\n", f"\N{ARABIC-INDIC DIGIT ZERO}{0:019d}.log"],
    ids=["line feed", "other digits"],
)
def test_a_name_that_only_looks_like_a_segments_is_left_alone(path, name):
    """Of the same number as the oldest one's."""
    (path / "rows-0" / name).write_bytes(b"something else")
    for _ in range(2):
        with eoslog.open(path) as store:
            assert store.partition("rows", 0).log_end_offset == 100
            assert store.verify() == []
    assert (path / "rows-0" / name).read_bytes() == b"something else"
