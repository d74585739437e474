"""Any bit of any file of a store flips: it is put right, or said, or it does not matter."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import pytest
from crash import flipped_store
from crash.flipped_store import WRONG, Flip, files_of, flips_of, kind_of, outcomes, table
from partition_files import PartitionFiles, all_records
from reference_model import batch_codec as codec
from staged_jobs import quick_directory

import eoslog
from eoslog.bindings.record_batch import iter_batches
from eoslog.errors import CorruptRecordError
from eoslog.store.store import parts_of

pytestmark = pytest.mark.crash

# After an unclean stop LMDB's file has no checksum, and nothing else tells where the very last
# batch of a log begins if its base offset rose: docs/security.md.
WITHOUT_A_CHECKSUM = ("state/lmdb/",)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The store as a clean close and as a kill leaves it, and what was written to it."""
    with quick_directory(tmp_path_factory.mktemp("flips")) as folder:
        content = flipped_store.make_store(folder / "clean", folder / "unclean")
        yield folder, content


def check(stores, state: str, choose) -> str:
    """Look at the store after each flip that `choose(name, flips)` takes of a file."""
    folder, content = stores
    template = folder / state
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    bytes_of: Counter[str] = Counter()
    wrong = []
    for name in files_of(template):
        data = (template / name).read_bytes()
        bytes_of[kind_of(name)] += len(data)
        chosen = [
            flip for flip in choose(name, flips_of(name, data)) if is_known(flip, state, data)
        ]
        for flip, outcome, why in outcomes(
            template, content, chosen, clean=state == "clean", folder=folder
        ):
            counts[kind_of(name)][outcome] += 1
            if outcome == WRONG:
                wrong.append(f"{flip}: {why}")
    found = table(counts, bytes_of)
    assert not wrong, "\n".join([f"{len(wrong)} flips:", *wrong[:20], found])
    return found


def is_known(flip: Flip, state: str, data: bytes) -> bool:
    """Whether something tells that the bit flipped."""
    if state == "clean":
        return True
    if flip.name.startswith(WITHOUT_A_CHECKSUM):
        return False
    if not flip.name.endswith(".log"):
        return True
    last = 0
    with suppress(CorruptRecordError):  # Behind the last one stand zeros.
        for batch in iter_batches(data):
            last = batch.position_bytes
    # Where it fell, the batch does not follow on any more, is cut off and kept.
    rose = not data[flip.position_bytes] & 1 << flip.bit
    return not (rose and last <= flip.position_bytes < last + 8)


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("state", ["clean", "unclean"])
def test_some_bits_of_every_file(stores, state):
    noise = random.Random(state)
    seen: set[str] = set()

    def some(name: str, flips: list[Flip]) -> list[Flip]:
        """One of each kind of file."""
        if not flips or kind_of(name) in seen:
            return []
        seen.add(kind_of(name))
        return [noise.choice(flips)]

    check(stores, state, some)


@pytest.mark.soak
@pytest.mark.parametrize("state", ["clean", "unclean"])
def test_every_bit_of_every_file(stores, state, capsys):
    """EOSLOG_FLIP_STEP=151: one in so many (odd: of all eight bits); EOSLOG_SEED: which ones.
    EOSLOG_FLIP_ONLY=state/: of the files below that alone; EOSLOG_FLIP_EXCEPT=state/shared: of none
    below that.
    """
    step = int(os.environ.get("EOSLOG_FLIP_STEP", "1"))
    only = os.environ.get("EOSLOG_FLIP_ONLY", "")
    left_out = os.environ.get("EOSLOG_FLIP_EXCEPT", "/")  # No file's name begins with it.
    noise = random.Random(os.environ.get("EOSLOG_SEED", "1"))

    def some(name: str, flips: list[Flip]) -> list[Flip]:
        if name.startswith(left_out) or not name.startswith(only):
            return []
        return flips[noise.randrange(step) :: step]

    found = check(stores, state, some)
    with capsys.disabled():
        print(f"\n{state}\n{found}")


# What was found so.


def flipped(path: Path, position_bytes: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position_bytes] ^= 1 << bit
    path.write_bytes(data)


def three_batches(files: PartitionFiles, *, roll_before_last: bool = False) -> int:
    """Three batches of three records; where the last but one begins."""
    log = files.open()
    for number in range(3):
        if number == 2 and roll_before_last:
            log.roll()
        log.append_batch(codec.simple_batch([b"%d.%d" % (number, one) for one in range(3)]))
    files.close()
    return len(codec.simple_batch([b"0.0", b"0.1", b"0.2"]))


EVERY_RISE = [(at, bit) for at in range(4, 8) for bit in range(8)]


@pytest.mark.parametrize(("at", "bit"), EVERY_RISE)
def test_a_base_offset_that_rose_in_the_last_batch_is_put_right(at, bit, make_partition):
    """No checksum covers it; a clean close says where the log ends."""
    files = make_partition()
    batch_bytes = three_batches(files)
    whole = files.path(0).read_bytes()
    flipped(files.path(0), 2 * batch_bytes + at, bit)
    try:
        log = files.open(recovery_point=9)
    except CorruptRecordError as error:
        assert error.path == str(files.path(0))
        return
    assert [record.offset for record in all_records(log)] == list(range(9))
    assert log.append_batch(codec.simple_batch([b"next"])).base_offset == 9
    files.close()
    assert files.path(0).read_bytes()[: len(whole)] == whole


@pytest.mark.parametrize(("at", "bit"), EVERY_RISE)
def test_one_that_rose_at_a_segments_end_costs_nothing_behind_it(at, bit, make_partition):
    """After an unclean stop what does not follow on it was cut off, and put aside."""
    files = make_partition()
    batch_bytes = three_batches(files, roll_before_last=True)
    flipped(files.path(0), batch_bytes + at, bit)
    log = files.open(clean=False)
    found = [record.offset for record in all_records(log)]
    if at >= 6 or (at, bit) > (4, 7):
        assert found == list(range(9)) or list(files.cut.iterdir())
    assert found == list(range(len(found)))


@pytest.mark.parametrize(("at", "bit"), EVERY_RISE)
def test_what_is_cut_off_behind_one_that_changed_is_kept_aside(at, bit, make_partition):
    """It was taken for the leftovers of a recycled file, and lost."""
    files = make_partition()
    batch_bytes = three_batches(files)
    whole = files.path(0).read_bytes()[: 3 * batch_bytes]
    flipped(files.path(0), batch_bytes + at, bit)
    log = files.open(clean=False)
    assert [record.offset for record in all_records(log)] == [0, 1, 2]
    (aside,) = files.cut.iterdir()
    assert aside.read_bytes()[batch_bytes:].rstrip(b"\0") == whole[2 * batch_bytes :].rstrip(b"\0")


@pytest.mark.parametrize("roll", [False, True])
@pytest.mark.parametrize("bit", [1, 2])
def test_a_base_offset_that_fell_in_the_last_batch_loses_no_byte(bit, roll, make_partition):
    """It was taken for the leftovers of a recycled file, though no old batch of one is whole."""
    files = make_partition()
    three_batches(files, roll_before_last=roll)
    path = files.path(6 if roll else 0)
    at = 0 if roll else 2 * len(codec.simple_batch([b"0.0", b"0.1", b"0.2"]))
    flipped(path, at + 7, bit)
    whole = path.read_bytes()[at:].rstrip(b"\0")
    log = files.open(clean=False)
    assert [record.offset for record in all_records(log)] == list(range(6))
    (aside,) = files.cut.iterdir()
    assert aside.read_bytes() == whole
    assert log.cut_bytes == len(whole)


def test_a_file_with_another_name_loses_no_byte(make_partition):
    files = make_partition()
    three_batches(files)
    whole = files.path(0).read_bytes()
    files.path(0).rename(files.path(100))
    log = files.open(clean=False)
    assert log.log_end_offset == 100
    (aside,) = files.cut.iterdir()
    assert aside.read_bytes().rstrip(b"\0") == whole.rstrip(b"\0")


@pytest.mark.parametrize("bit", range(8))
def test_a_last_offset_that_is_damaged_is_named(bit, make_partition):
    """After a clean close only headers are looked at: the log seems to end elsewhere."""
    files = make_partition()
    batch_bytes = three_batches(files)
    flipped(files.path(0), 2 * batch_bytes + 26, bit)
    with pytest.raises(CorruptRecordError) as caught:
        files.open(recovery_point=9)
    assert caught.value.path == str(files.path(0))
    assert caught.value.position_bytes == 2 * batch_bytes


def test_a_recovery_point_that_is_wrong_harms_nobody(make_partition):
    files = make_partition()
    three_batches(files)
    for recovery_point in (1, 8, 10, 12, 10_000):
        log = files.open(recovery_point=recovery_point)
        assert [record.offset for record in all_records(log)] == list(range(9))
        files.close()


def test_after_a_clean_close_nothing_of_lmdb_is_begun_anew(tmp_path, caplog):
    """The checksums are those of the files as they are when everything is written."""
    for _ in range(3):
        with eoslog.open(tmp_path / "store", create=True) as store:
            if "orders" not in store.topics():
                store.create_topic("orders")
            with store.producer(name="writer") as producer:
                producer.append("orders", partition=0, values=[b"v"])
            assert parts_of(store).files.lmdb.generation == 0
    assert "is not as it was" not in caplog.text
    assert not list((tmp_path / "store").rglob("*.damaged"))
