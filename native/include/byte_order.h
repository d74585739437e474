/* Big-endian loads and stores at any alignment: by memcpy, never by a cast. */
#ifndef EOSLOG_BYTE_ORDER_H
#define EOSLOG_BYTE_ORDER_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define EOS_BE16(value) __builtin_bswap16(value)
#define EOS_BE32(value) __builtin_bswap32(value)
#define EOS_BE64(value) __builtin_bswap64(value)
#else
#define EOS_BE16(value) (value)
#define EOS_BE32(value) (value)
#define EOS_BE64(value) (value)
#endif

static inline int16_t load_be16(const uint8_t *at) {
    uint16_t raw;
    memcpy(&raw, at, sizeof raw);
    return (int16_t)EOS_BE16(raw);
}

static inline int32_t load_be32(const uint8_t *at) {
    uint32_t raw;
    memcpy(&raw, at, sizeof raw);
    return (int32_t)EOS_BE32(raw);
}

static inline int64_t load_be64(const uint8_t *at) {
    uint64_t raw;
    memcpy(&raw, at, sizeof raw);
    return (int64_t)EOS_BE64(raw);
}

static inline void store_be16(uint8_t *at, int16_t value) {
    uint16_t raw = EOS_BE16((uint16_t)value);
    memcpy(at, &raw, sizeof raw);
}

static inline void store_be32(uint8_t *at, int32_t value) {
    uint32_t raw = EOS_BE32((uint32_t)value);
    memcpy(at, &raw, sizeof raw);
}

static inline void store_be64(uint8_t *at, int64_t value) {
    uint64_t raw = EOS_BE64((uint64_t)value);
    memcpy(at, &raw, sizeof raw);
}

#endif
