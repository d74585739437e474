"""CRC-32C: every implementation this CPU has, against a definition one bit at a time."""

import random
import runpy
from pathlib import Path

import pytest

from eoslog.bindings import crc32c_testing

ROOT = Path(__file__).resolve().parents[3]
CHECK_VALUE = 0xE3069283  # Of b"123456789", as the catalogues of checksums give it.
CASES = 20_000
BUFFER_BYTES = 6_000  # Past two rounds of the widest loop and of the longest three lanes.
AVAILABLE = [
    pytest.param(number, id=name)
    for number, name in enumerate(crc32c_testing.implementations())
    if crc32c_testing.checksum_by(number, b"") is not None
]


def bitwise_states(data: bytes) -> list[int]:
    """The register, starting from zero, after each prefix of the data."""
    states = [0]
    for byte in data:
        crc = states[-1] ^ byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        states.append(crc)
    return states


def after_zero_bytes(register: int, zero_bytes: int, powers: list[list[int]]) -> int:
    """The register moved over zero bytes; powers[k][bit] moves one bit over 2**k of them."""
    for exponent in range(zero_bytes.bit_length()):
        if zero_bytes >> exponent & 1:
            register = moved(register, powers[exponent])
    return register


def moved(register: int, columns: list[int]) -> int:
    result = 0
    for bit in range(32):
        if register >> bit & 1:
            result ^= columns[bit]
    return result


@pytest.fixture(scope="module")
def cases() -> list[tuple[int, int, int, int]]:
    """Random (first, last, crc before, crc after) over one random buffer.

    The reference is linear: the register after a slice is the register of the longer prefix, less
    that of the shorter prefix and of the seed, both moved over the slice's length.
    """
    data = shared_data()
    states = bitwise_states(data)
    powers = [[bitwise_states_of(1 << bit, b"\0") for bit in range(32)]]
    while len(powers) < BUFFER_BYTES.bit_length():
        powers.append([moved(column, powers[-1]) for column in powers[-1]])
    source = random.Random(3)
    made = []
    for _ in range(CASES):
        limit = source.choice((16, 130, 600, 1_200, BUFFER_BYTES))
        count = source.randrange(limit + 1)
        first = source.randrange(BUFFER_BYTES - count + 1)
        seed = source.choice((0, source.getrandbits(32)))
        before = (seed ^ 0xFFFFFFFF) ^ states[first]
        after = states[first + count] ^ after_zero_bytes(before, count, powers) ^ 0xFFFFFFFF
        made.append((first, first + count, seed, after))
    return made


def bitwise_states_of(register: int, data: bytes) -> int:
    """The register after the data, one bit at a time."""
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register


def shared_data() -> bytes:
    return random.Random(2).randbytes(BUFFER_BYTES)


def test_the_reference_gives_the_check_value():
    assert bitwise_states_of(0xFFFFFFFF, b"123456789") ^ 0xFFFFFFFF == CHECK_VALUE


def test_the_reference_over_slices_is_the_one_over_bytes(cases):
    data = shared_data()
    for first, last, seed, expected in cases[:50]:
        assert bitwise_states_of(seed ^ 0xFFFFFFFF, data[first:last]) ^ 0xFFFFFFFF == expected


@pytest.mark.parametrize("number", AVAILABLE)
def test_check_value(number):
    assert crc32c_testing.checksum_by(number, b"123456789") == CHECK_VALUE


@pytest.mark.parametrize("number", AVAILABLE)
def test_every_length_alignment_and_seed_agrees_with_the_reference(number, cases):
    data = memoryview(shared_data())
    wrong = [
        (first, last, seed)
        for first, last, seed, expected in cases
        if crc32c_testing.checksum_by(number, data[first:last], seed) != expected
    ]
    assert wrong == []


@pytest.mark.parametrize("number", AVAILABLE)
def test_every_length_up_to_two_rounds_agrees_with_the_table(number):
    data = memoryview(shared_data())
    table = crc32c_testing.implementations().index("table")
    for byte_count in range(2_200):
        expected = crc32c_testing.checksum_by(table, data[:byte_count])
        assert crc32c_testing.checksum_by(number, data[:byte_count]) == expected, byte_count


@pytest.mark.parametrize("number", AVAILABLE)
def test_a_checksum_continues_over_parts(number):
    data = shared_data()
    whole = crc32c_testing.checksum_by(number, data)
    for cut in (0, 1, 7, 63, 64, 255, 256, 257, 1_000, BUFFER_BYTES):
        first = crc32c_testing.checksum_by(number, data[:cut])
        assert crc32c_testing.checksum_by(number, data[cut:], first) == whole


def test_the_engine_uses_the_fastest_implementation_there_is():
    names = crc32c_testing.implementations()
    assert crc32c_testing.chosen() == names[AVAILABLE[-1].values[0]]
    assert crc32c_testing.checksum(b"123456789") == CHECK_VALUE


def test_an_implementation_that_is_not_there_is_refused():
    names = crc32c_testing.implementations()
    assert "table" in names
    assert crc32c_testing.checksum_by(len(names), b"") is None
    assert crc32c_testing.checksum_by(-1, b"") is None


def test_the_constants_in_the_header_are_the_derived_ones():
    tool = runpy.run_path(str(ROOT / "tools" / "crc32c_constants.py"))
    written = (ROOT / "native" / "include" / "crc32c_constants.h").read_text()
    assert written == tool["header"]() + "\n"
