"""A bit flips in a batch that was stored: reading it says where; its neighbours are still read."""

from __future__ import annotations

import pytest
from partition_files import all_records
from reference_model import batch_codec as codec

from eoslog.errors import CorruptRecordError

VALUES = [b"value-%03d" % index for index in range(9)]
BATCHES = [
    codec.simple_batch(VALUES[first : first + 3], base_offset=first, timestamp_ms=1000 + first)
    for first in (0, 3, 6)
]
MIDDLE = len(BATCHES[0])
MIDDLE_BYTES = len(BATCHES[1])


def with_flips(*places: int) -> bytes:
    data = bytearray(b"".join(BATCHES))
    for place in places:
        data[place] ^= 0x04
    return bytes(data)


def broken_while_open(files, data: bytes):
    """The log is open and sound; then the file changes on disk below it."""
    files.write(0, b"".join(BATCHES))
    files.open(clean=False)
    files.close()
    log = files.open()
    with files.path(0).open("r+b") as file:
        file.write(data)
    return log


def in_the_log(problems: list[dict[str, object]]) -> list[dict[str, object]]:
    return [problem for problem in problems if str(problem["path"]).endswith(".log")]


CHECKED_BY_CRC = [*range(17, MIDDLE_BYTES, 5), MIDDLE_BYTES - 1]


@pytest.mark.parametrize("inside", CHECKED_BY_CRC)
def test_a_read_names_the_place(inside, make_partition):
    files = make_partition()
    log = broken_while_open(files, with_flips(MIDDLE + inside))
    for fetch in (
        lambda: log.fetch_records(3, 100, 1 << 20),
        lambda: log.fetch_columns(4, 1 << 20),
        lambda: log.fetch_records(5, 1, 1),
    ):
        with pytest.raises(CorruptRecordError) as caught:
            fetch()
        assert caught.value.path == str(files.path(0))
        assert caught.value.position_bytes == MIDDLE
        assert caught.value.reason
        assert caught.value.outcome == "damaged"


@pytest.mark.parametrize("inside", CHECKED_BY_CRC)
def test_neighbours_are_still_read(inside, make_partition):
    log = broken_while_open(make_partition(), with_flips(MIDDLE + inside))
    before, next_offset = log.fetch_records(0, 3, 1 << 20)
    assert [record.value for record in before] == VALUES[:3]
    assert next_offset == 3
    behind, next_offset = log.fetch_records(6, 100, 1 << 20)
    assert [record.value for record in behind] == VALUES[6:]
    assert next_offset == 9
    assert [record.value for record in log.fetch_records(0, 100, MIDDLE)[0]] == VALUES[:3]


@pytest.mark.parametrize("inside", [*range(7), *range(8, 12), *range(16, 21), 23, 30])
def test_a_flip_is_an_error_or_a_right_answer_never_a_wrong_one(inside, make_partition):
    """Also where the checksum does not look: base offset, length, magic."""
    log = broken_while_open(make_partition(), with_flips(MIDDLE + inside))
    for offset in range(9):
        try:
            records, _ = log.fetch_records(offset, 1, 1)
        except CorruptRecordError as error:
            assert error.path
        else:
            assert [record.value for record in records] == [VALUES[offset]]
            assert [record.offset for record in records] == [offset]


@pytest.mark.parametrize("inside", range(8))
def test_verify_notices_a_base_offset_that_does_not_follow(inside, make_partition):
    log = broken_while_open(make_partition(), with_flips(MIDDLE + inside))
    assert in_the_log(log.verify())


@pytest.mark.parametrize("inside", [*range(8, 12), *range(16, MIDDLE_BYTES, 7)])
def test_verify_reports_it(inside, make_partition):
    files = make_partition()
    log = broken_while_open(files, with_flips(MIDDLE + inside))
    (problem,) = in_the_log(log.verify())
    assert problem["path"] == str(files.path(0))
    assert problem["position_bytes"] == MIDDLE
    assert problem["reason"]


def test_verify_reports_every_broken_batch(make_partition):
    """A sound length leads on to the next batch."""
    log = broken_while_open(make_partition(), with_flips(70, MIDDLE + 70, 2 * MIDDLE + 70))
    found = [problem["position_bytes"] for problem in in_the_log(log.verify())]
    assert found == [0, MIDDLE, 2 * MIDDLE]


def test_appends_go_on_behind_a_broken_batch(make_partition):
    files = make_partition()
    log = broken_while_open(files, with_flips(MIDDLE + 70))
    assert log.append_batch(codec.simple_batch([b"next"])).base_offset == 9
    assert log.fetch_records(9, 1, 100)[0][0].value == b"next"
    # A clean close and open scans headers alone: nothing that was readable is cut off.
    log = files.reopen()
    assert log.log_end_offset == 10
    assert [record.value for record in all_records(log, 6)] == [*VALUES[6:], b"next"]


def test_recovery_keeps_what_it_cuts_off(make_partition):
    """After an unclean stop the log ends at the first broken batch; the rest is kept aside."""
    files = make_partition()
    data = with_flips(MIDDLE + 70)
    files.write(0, data)
    log = files.open(clean=False)
    assert log.log_end_offset == 3
    assert [record.value for record in all_records(log)] == VALUES[:3]
    (aside,) = files.cut.iterdir()
    assert aside.read_bytes() == data[MIDDLE:].rstrip(b"\x00")


def test_a_file_cut_short_below_an_open_log_is_an_error(make_partition):
    """The mapping reaches beyond the file then: touching it would end the process."""
    files = make_partition()
    files.write(0, b"".join(BATCHES))
    files.open(clean=False)
    log = files.log
    log.roll()
    log.append_batch(codec.simple_batch([b"next"]))
    with files.path(0).open("r+b") as file:
        file.truncate(10)
    with pytest.raises(CorruptRecordError) as caught:
        log.fetch_records(0, 100, 1 << 20)
    assert caught.value.path == str(files.path(0))
    assert in_the_log(log.verify())
    assert log.fetch_records(9, 1, 100)[0][0].value == b"next"
