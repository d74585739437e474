"""Print native/include/crc32c_constants.h: the multipliers that join parts of a CRC-32C.

    python tools/crc32c_constants.py > native/include/crc32c_constants.h

A checksum is the message as a polynomial over GF(2), times x**32, modulo P. Two parts of a
message can be worked on apart if the first is then multiplied by x**n mod P, n being the number
of bits that follow it. Bits are reflected (bit 0 is the highest power), which adds one factor x
to every carry-less product, and the constants are 32 bits wide:

- Folding. A 64-bit half of a vector times a 32-bit constant k lands in 128 bits as the product
  times x**33. To move a half by n bits, k = x**(n - 33). A vector's first half stands 64 bits
  before its second, so a distance of d bits needs x**(d + 31) for the first, x**(d - 33) for the
  second.
- Joining. A 32-bit checksum times k lands in 64 bits as the product times x, and the `crc32`
  instruction that takes it in multiplies by x**32: again k = x**(n - 33).
"""

POLYNOMIAL = 0x11EDC6F41
JOIN_WORDS_MAX = 256
FOLD_DISTANCES_BITS = (128, 256, 384, 512, 1024, 2048, 4096)


def power_of_x_mod_polynomial(exponent: int) -> int:
    """x**exponent mod P; bit i stands for x**i."""
    value = 1
    for _ in range(exponent):
        value <<= 1
        if value >> 32:
            value ^= POLYNOMIAL
    return value


def reflected(value: int) -> int:
    """The same 32 bits in the opposite order."""
    return int(f"{value:032b}"[::-1], 2)


def multiplier(distance_bits: int) -> int:
    """The constant that moves a part of a message by this many bits (33 at least)."""
    return reflected(power_of_x_mod_polynomial(distance_bits - 33))


def header() -> str:
    lines = [
        "/* Written by tools/crc32c_constants.py, which derives these numbers. */",
        "#ifndef EOSLOG_CRC32C_CONSTANTS_H",
        "#define EOSLOG_CRC32C_CONSTANTS_H",
        "",
        "#include <stdint.h>",
        "",
        "/* Reflected x**(distance - 33) mod P: for a vector's first half, then for its second. */",
    ]
    for distance_bits in FOLD_DISTANCES_BITS:
        first, second = multiplier(distance_bits + 64), multiplier(distance_bits)
        lines.append(f"#define CRC32C_FOLD_{distance_bits}_FIRST 0x{first:08x}")
        lines.append(f"#define CRC32C_FOLD_{distance_bits}_SECOND 0x{second:08x}")
    lines += [
        "",
        f"enum {{ CRC32C_JOIN_WORDS_MAX = {JOIN_WORDS_MAX} }};",
        "",
        "/* Entry n moves a checksum over n words of 8 bytes; entry 0 is not used. */",
        "static const uint32_t CRC32C_JOIN[CRC32C_JOIN_WORDS_MAX + 1] = {",
        "    0,",
    ]
    join = [f"0x{multiplier(64 * words):08x}" for words in range(1, JOIN_WORDS_MAX + 1)]
    lines += [f"    {', '.join(join[row : row + 8])}," for row in range(0, JOIN_WORDS_MAX, 8)]
    lines += ["};", "", "#endif"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(header())
