/* CRC-32C by tables, eight bytes at a time: for any CPU and either byte order. */
#ifndef EOSLOG_CRC32C_TABLE_H
#define EOSLOG_CRC32C_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define CRC32C_POLYNOMIAL_REFLECTED 0x82f63b78u

/* [k][b]: what byte b does to the checksum when k more bytes follow it. */
static uint32_t crc32c_table[8][256];

static void crc32c_table_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1u) ? CRC32C_POLYNOMIAL_REFLECTED : 0u);
        crc32c_table[0][byte] = crc;
    }
    for (int following = 1; following < 8; following++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc32c_table[following - 1][byte];
            crc32c_table[following][byte] = (crc >> 8) ^ crc32c_table[0][crc & 0xffu];
        }
}

static uint32_t crc32c_by_table(uint32_t crc, const uint8_t *data, size_t bytes) {
    crc = ~crc;
    for (; bytes >= 8; data += 8, bytes -= 8) {
        crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
               (uint32_t)data[3] << 24;
        crc = crc32c_table[7][crc & 0xffu] ^ crc32c_table[6][(crc >> 8) & 0xffu] ^
              crc32c_table[5][(crc >> 16) & 0xffu] ^ crc32c_table[4][crc >> 24] ^
              crc32c_table[3][data[4]] ^ crc32c_table[2][data[5]] ^
              crc32c_table[1][data[6]] ^ crc32c_table[0][data[7]];
    }
    for (; bytes > 0; data++, bytes--)
        crc = (crc >> 8) ^ crc32c_table[0][(crc ^ *data) & 0xffu];
    return ~crc;
}

#endif
