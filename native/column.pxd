# A borrowed column of byte strings: where record i starts, how long it is, whether it is null.
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum ColumnKind:
    COLUMN_NULL = 0                  # Every record is null (the column was not given).
    COLUMN_OFFSETS_32 = 1            # Arrow binary or string: data + count+1 offsets.
    COLUMN_OFFSETS_64 = 2            # Arrow large binary or large string.
    COLUMN_FIXED = 3                 # fixed_bytes each, back to back.
    COLUMN_POINTERS = 4              # One pointer and one length each (a list of bytes objects).

cdef struct Column:
    ColumnKind kind
    int64_t count
    const uint8_t* data
    const int32_t* offsets_32
    const int64_t* offsets_64
    int64_t fixed_bytes
    const uint8_t** pointers
    const int64_t* lengths           # -1 = null.
    const uint8_t* validity          # Arrow bitmap, bit set = not null; NULL without nulls.
    int64_t validity_bit_offset

# Length of record `index`, -1 if it is null; its first byte in `bytes_out`.
cdef inline int64_t column_get(
    const Column* column, int64_t index, const uint8_t** bytes_out
) noexcept nogil:
    cdef int64_t bit
    if column.validity != NULL:
        bit = column.validity_bit_offset + index
        if not (column.validity[bit >> 3] >> (bit & 7)) & 1:
            bytes_out[0] = NULL
            return -1
    if column.kind == COLUMN_OFFSETS_32:
        bytes_out[0] = column.data + column.offsets_32[index]
        return <int64_t>column.offsets_32[index + 1] - column.offsets_32[index]
    if column.kind == COLUMN_POINTERS:
        bytes_out[0] = column.pointers[index]
        return column.lengths[index]
    if column.kind == COLUMN_OFFSETS_64:
        bytes_out[0] = column.data + column.offsets_64[index]
        return column.offsets_64[index + 1] - column.offsets_64[index]
    if column.kind == COLUMN_FIXED:
        bytes_out[0] = column.data + index * column.fixed_bytes
        return column.fixed_bytes
    bytes_out[0] = NULL
    return -1

# Payload bytes of records [first, first + count), or an upper bound of them (nulls may be counted).
cdef inline int64_t column_bytes(const Column* column, int64_t first, int64_t count) noexcept nogil:
    cdef int64_t total = 0
    cdef int64_t index
    if column.kind == COLUMN_OFFSETS_32:
        return <int64_t>column.offsets_32[first + count] - column.offsets_32[first]
    if column.kind == COLUMN_OFFSETS_64:
        return column.offsets_64[first + count] - column.offsets_64[first]
    if column.kind == COLUMN_FIXED:
        return column.fixed_bytes * count
    if column.kind == COLUMN_POINTERS:
        for index in range(first, first + count):
            if column.lengths[index] > 0:
                total += column.lengths[index]
    return total
