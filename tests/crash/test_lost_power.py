"""The power goes: what was synced is there, what is there is a beginning of what was sent."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from crash.lost_power import DiskState, PowerCut
from partition_files import PartitionFiles, all_records
from reference_model import batch_codec as codec
from short_form import short_form

pytestmark = pytest.mark.crash

BASE_MS = 1_790_000_000_000
PRODUCER_IDS = (1, 2)
UNIFORM = b"x" * 200


class Writer:
    """Two producers in turn, on one partition; remembers everything that was sent."""

    def __init__(self, root: Path, *, spares: int, uniform: bool, seed: int) -> None:
        config = {"segment.bytes": 6000, "index.interval.bytes": 500}
        config["eoslog.spare.segments"] = spares
        self.files = PartitionFiles(root, config)
        self.log = self.files.open()
        self.noise = random.Random(seed)
        self.uniform = uniform
        self.sent: list[bytes] = []
        self.values: list[bytes] = []
        self.next_sequence = dict.fromkeys(PRODUCER_IDS, 0)

    def append(self, batch_count: int) -> None:
        for _ in range(batch_count):
            producer_id = self.noise.choice(PRODUCER_IDS)
            count = 2 if self.uniform else self.noise.randint(1, 6)
            values = [self._value(len(self.values) + index) for index in range(count)]
            data = codec.simple_batch(
                values,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=self.next_sequence[producer_id],
                timestamp_ms=BASE_MS + len(self.values),
            )
            assert self.log.append_batch(data).base_offset == len(self.values)
            self.next_sequence[producer_id] += count
            self.sent.append(data)
            self.values += values

    def _value(self, offset: int) -> bytes:
        head = b"%08d:" % offset
        return head + (UNIFORM if self.uniform else b"y" * self.noise.randrange(600))

    def flush(self, with_indexes: bool) -> tuple[DiskState, dict[Path, int], int]:
        """Sync; what the disk holds for certain: files, bytes of each, the log's end."""
        end = self.log.flush(with_indexes)
        sizes = {
            Path(segment["path"]).relative_to(self.files.root): segment["size_bytes"]
            for segment in self.log.segments()
        }
        return DiskState.of(self.files.root), sizes, end


def check_after(writer: Writer, root: Path, synced_end: int) -> int:
    """A beginning of what was sent, with all that was synced; the rest can be sent again."""
    files = PartitionFiles(root, writer.files.config)
    log = files.open(
        clean=False,
        recovery_point=synced_end,
        log_start_offset=min(synced_end, writer.log.log_start_offset),
    )
    end = log.log_end_offset
    start = log.log_start_offset
    assert synced_end <= end <= len(writer.values)
    values = [record.value for record in all_records(log)]
    assert values == writer.values[start:end], "not a beginning of what was sent"
    assert [problem for problem in log.verify() if problem["path"].endswith(".log")] == []
    offset = 0
    for data in writer.sent:
        count = codec.decode_header(data).record_count
        if offset >= end:
            result = log.append_batch(data)
            assert (result.base_offset, result.duplicate) == (offset, False)
        offset += count
    assert [record.value for record in all_records(log)] == writer.values[start:]
    for data in writer.sent[-2:]:
        assert log.append_batch(data).duplicate
    files.close()
    log = files.open(log_start_offset=start)
    assert [record.value for record in all_records(log)] == writer.values[start:]
    assert log.verify() == []
    files.close()
    return end


def cut_the_power(writer: Writer, synced, seeds: range, target: Path) -> set[int]:
    """Many cuts of the same moment; how far each of them got."""
    before, sizes, end = synced
    now = DiskState.of(writer.files.root)
    ends = set()
    for seed in seeds:
        PowerCut(before, now, seed).write(target, sizes)
        try:
            ends.add(check_after(writer, target, end))
        except BaseException as error:
            error.add_note(f"cut {seed}")
            raise
        shutil.rmtree(target)
    return ends


def scenario(tmp_path: Path, *, seed: int, cuts: int, spares: int, uniform: bool) -> set[int]:
    writer = Writer(tmp_path / "live", spares=spares, uniform=uniform, seed=seed)
    writer.append(writer.noise.randint(0, 30))
    if spares:
        writer.append(60)
        writer.log.take_snapshot(sync=True)
        assert writer.log.delete_segments(len(writer.values)) > 0
        if writer.noise.random() < 0.5:
            writer.log.prepare_spare(spares)
    synced = writer.flush(with_indexes=writer.noise.random() < 0.5)
    writer.append(writer.noise.randint(1, 40))
    return cut_the_power(writer, synced, range(cuts), tmp_path / "after")


@pytest.mark.parametrize("uniform", [False, True], ids=["sizes-differ", "same-size"])
@pytest.mark.parametrize("spares", [0, 2], ids=["new-files", "recycled-files"])
@pytest.mark.parametrize("seed", short_form(range(4), 0, 1))
def test_what_was_synced_is_there(tmp_path, seed, spares, uniform):
    scenario(tmp_path, seed=seed, cuts=25, spares=spares, uniform=uniform)


@pytest.mark.soak
@pytest.mark.parametrize("uniform", [False, True], ids=["sizes-differ", "same-size"])
@pytest.mark.parametrize("spares", [0, 2], ids=["new-files", "recycled-files"])
def test_what_was_synced_is_there_after_thousands_of_cuts(tmp_path, spares, uniform):
    for seed in range(100, 200):
        root = tmp_path / str(seed)
        scenario(root, seed=seed, cuts=40, spares=spares, uniform=uniform)
        shutil.rmtree(root)


def test_the_cuts_differ(tmp_path):
    """Some lose everything that was not synced, some nothing: else the tests above say little."""
    writer = Writer(tmp_path / "live", spares=0, uniform=False, seed=1)
    writer.append(5)
    synced = writer.flush(with_indexes=True)
    writer.append(5)
    ends = cut_the_power(writer, synced, range(60), tmp_path / "after")
    assert len(ends) > 3
    assert max(ends) == len(writer.values)


@pytest.mark.parametrize("behind", ["nothing", "zeros"])
def test_a_lost_tail_of_a_sealed_segment_takes_the_later_ones_with_it(tmp_path, behind):
    """Cut between two batches, the later segment looks sound: but it follows a gap."""
    writer = Writer(tmp_path / "live", spares=0, uniform=True, seed=1)
    writer.append(4)
    writer.log.roll()
    writer.append(3)
    target = tmp_path / "after"
    shutil.copytree(writer.files.root, target)
    first = target / writer.files.path(0).relative_to(writer.files.root)
    whole = first.read_bytes()
    batch_bytes = len(writer.sent[0])
    for kept in range(4):
        shutil.rmtree(target)
        shutil.copytree(writer.files.root, target)
        rest = bytes(len(whole) - kept * batch_bytes) if behind == "zeros" else b""
        first.write_bytes(whole[: kept * batch_bytes] + rest)
        assert check_after(writer, target, 0) == 2 * kept


def test_after_a_recovery_nothing_is_wrong_with_the_index_files(tmp_path):
    """Entries of batches that did not survive are gone from the files too: verify() reads them."""
    writer = Writer(tmp_path / "live", spares=0, uniform=True, seed=1)
    writer.append(4)
    writer.log.flush(True)
    writer.files.close(clean=False)
    path = writer.files.path(0)
    path.write_bytes(path.read_bytes()[: len(writer.sent[0])])
    log = writer.files.open(clean=False)
    assert log.log_end_offset == 2
    assert log.verify() == []
