# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Records of CSV, as RFC 4180 has it. Nothing is guessed: a cell is its text.

Invariants: a cell that is empty without quotes is null; a quote begins a cell, ends it, or is
doubled, so that the quotes before a line end say if it ends the row; a carriage return stands
before a line feed, or inside quotes.
"""
from libc.stdint cimport uint32_t
from libc.string cimport memchr, memcpy, memmove

from eoslog.native.crc32c cimport crc32c
from eoslog.native.json_text cimport (
    TEXT_CELL_COUNT, TEXT_NO_MEMORY, TEXT_NOT_A_TIME, TEXT_NOT_HEADERS, TEXT_NOT_UTF8, TEXT_OK,
    TEXT_STRAY_QUOTE, TEXT_STRAY_RETURN, JsonCursor, json_bytes_bound, json_bytes_store,
    json_integer_load, json_skip_space,
)
from eoslog.native.text_records cimport (
    TextBuffer, buffer_reserve, headers_load, line_end, record_push, take_lines,
)
from eoslog.native.utf8 cimport utf8_end

cdef enum:
    MS_PER_DAY = 86_400_000
    MS_PER_HOUR = 3_600_000
    MS_PER_MINUTE = 60_000


cdef uint8_t* csv_row_end(
    uint8_t* at, uint8_t* end, bint is_whole, int64_t* line_count
) noexcept nogil:
    """Place after the row that begins at `at`; NULL if it goes on after `end`.

    `is_whole`: nothing comes after `end`, which ends a row too.
    """
    cdef uint8_t* stop
    cdef uint8_t* quote
    cdef bint is_open = False
    line_count[0] = 0
    while at < end:
        stop = line_end(at, end)
        while True:
            quote = <uint8_t*>memchr(at, c'"', <size_t>(stop - at))
            if quote == NULL:
                break
            is_open = not is_open
            at = quote + 1
        line_count[0] += 1
        if stop == end:
            break
        at = stop + 1
        if not is_open:
            return at
    return end if is_whole else NULL


cdef TextFault csv_row_load(
    uint8_t* at, uint8_t* end, CsvCell* cells, int64_t cells_max, int64_t* count, uint8_t** fault_at
) noexcept nogil:
    """Read the cells of a row without its line end. Beyond `cells_max` they are only counted."""
    cdef CsvCell ignored
    cdef CsvCell* cell
    cdef uint8_t* stop
    cdef uint8_t* out
    cdef uint8_t* found
    count[0] = 0
    while True:
        cell = &cells[count[0]] if count[0] < cells_max else &ignored
        count[0] += 1
        fault_at[0] = at
        if at < end and at[0] == c'"':
            at += 1
            out = at
            cell.text = at
            while True:
                found = <uint8_t*>memchr(at, c'"', <size_t>(end - at))
                if found == NULL:
                    return TEXT_STRAY_QUOTE
                if out != at:
                    memmove(out, at, <size_t>(found - at))
                out += found - at
                at = found + 1
                if at == end or at[0] != c'"':
                    break
                out[0] = c'"'
                out += 1
                at += 1
            cell.text_bytes = out - cell.text
            if utf8_end(cell.text, out) != out:
                return TEXT_NOT_UTF8
            if at < end and at[0] != c',':
                fault_at[0] = at - 1
                return TEXT_STRAY_QUOTE
        else:
            stop = <uint8_t*>memchr(at, c',', <size_t>(end - at))
            if stop == NULL:
                stop = end
            cell.text = at
            cell.text_bytes = stop - at if stop > at else -1
            found = <uint8_t*>utf8_end(at, stop)
            if found != stop:
                fault_at[0] = found
                return TEXT_NOT_UTF8
            found = <uint8_t*>memchr(at, c'"', <size_t>(stop - at))
            if found != NULL:
                fault_at[0] = found
                return TEXT_STRAY_QUOTE
            found = <uint8_t*>memchr(at, c'\r', <size_t>(stop - at))
            if found != NULL:
                fault_at[0] = found
                return TEXT_STRAY_RETURN
            at = stop
        if at == end:
            return TEXT_OK
        at += 1


cdef int64_t digits_load(uint8_t** at, const uint8_t* end, int count) noexcept nogil:
    """Number that so many digits are; -1 if they are not."""
    cdef int64_t number = 0
    if end - at[0] < count:
        return -1
    while count > 0:
        if not c'0' <= at[0][0] <= c'9':
            return -1
        number = number * 10 + at[0][0] - c'0'
        at[0] += 1
        count -= 1
    return number


cdef int64_t days_since_1970(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Days of a date from 1970 on, by the Gregorian calendar."""
    cdef int64_t shifted = year - (month <= 2)   # Years that begin in March.
    cdef int64_t era = shifted // 400            # No date here is before the year 0.
    cdef int64_t of_era = shifted - era * 400
    cdef int64_t day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return (
        era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719468)


cdef bint is_day(int64_t year, int64_t month, int64_t day) noexcept nogil:
    cdef int64_t days = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        days = 30
    elif month == 2:
        days = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return year >= 1970 and 1 <= month <= 12 and 1 <= day <= days


cdef bint time_load(uint8_t* at, const uint8_t* end, int64_t* timestamp_ms) noexcept nogil:
    """Read a time of ISO 8601, from 1970 on; without a zone it is in UTC. What is finer than a
    millisecond is cut off.
    """
    cdef int64_t year, month, day, hour, minute
    cdef int64_t second = 0
    cdef int64_t fraction_ms = 0
    cdef int64_t zone_ms = 0
    cdef int64_t part_ms = 100
    cdef int64_t sign = 1
    year = digits_load(&at, end, 4)
    if at == end or at[0] != c'-':
        return False
    at += 1
    month = digits_load(&at, end, 2)
    if at == end or at[0] != c'-':
        return False
    at += 1
    day = digits_load(&at, end, 2)
    if not is_day(year, month, day) or at == end or (at[0] != c'T' and at[0] != c' '):
        return False
    at += 1
    hour = digits_load(&at, end, 2)
    if at == end or at[0] != c':':
        return False
    at += 1
    minute = digits_load(&at, end, 2)
    if at < end and at[0] == c':':
        at += 1
        second = digits_load(&at, end, 2)
        if at < end and at[0] == c'.':
            at += 1
            if at == end or not c'0' <= at[0] <= c'9':
                return False
            while at < end and c'0' <= at[0] <= c'9':
                fraction_ms += (at[0] - c'0') * part_ms
                part_ms //= 10
                at += 1
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59):
        return False
    timestamp_ms[0] = (
        days_since_1970(year, month, day) * MS_PER_DAY + hour * MS_PER_HOUR
        + minute * MS_PER_MINUTE + second * 1000 + fraction_ms)
    if at < end and at[0] == c'Z':
        at += 1
    elif at < end and (at[0] == c'+' or at[0] == c'-'):
        sign = 1 if at[0] == c'+' else -1
        at += 1
        hour = digits_load(&at, end, 2)
        if at < end and at[0] == c':':
            at += 1
        minute = digits_load(&at, end, 2)
        if not (0 <= hour <= 23 and 0 <= minute <= 59):
            return False
        zone_ms = sign * (hour * MS_PER_HOUR + minute * MS_PER_MINUTE)
    timestamp_ms[0] -= zone_ms
    return at == end


cdef TextFault timestamp_load(const CsvCell* cell, int64_t* timestamp_ms) noexcept nogil:
    cdef JsonCursor cursor
    cursor.at = cell.text
    cursor.end = cell.text + cell.text_bytes
    if json_integer_load(&cursor, timestamp_ms) == TEXT_OK and cursor.at == cursor.end:
        return TEXT_OK
    if time_load(cell.text, cell.text + cell.text_bytes, timestamp_ms):
        return TEXT_OK
    return TEXT_NOT_A_TIME


cdef TextFault object_store(TextBuffer* buffer, const CsvColumns* columns) noexcept nogil:
    """Append the row as a JSON object."""
    cdef uint8_t* out
    cdef int64_t bound = 2
    cdef int64_t index
    for index in range(columns.count):
        bound += columns.name_bytes[index] + 1
        bound += json_bytes_bound(columns.cells[index].text_bytes)
    if buffer_reserve(buffer, bound) != TEXT_OK:
        return TEXT_NO_MEMORY
    out = buffer.data + buffer.used_bytes
    for index in range(columns.count):
        out[0] = c'{' if index == 0 else c','
        memcpy(out + 1, columns.names[index], <size_t>columns.name_bytes[index])
        out = json_bytes_store(
            out + 1 + columns.name_bytes[index], columns.cells[index].text,
            columns.cells[index].text_bytes)
    out[0] = c'}'
    buffer.used_bytes = out + 1 - buffer.data
    return TEXT_OK


cdef TextFault row_push(
    TextRecords* records, const CsvColumns* columns, uint8_t** fault_at
) noexcept nogil:
    """Append the record of a row."""
    cdef const CsvCell* cell
    cdef JsonCursor cursor
    cdef const uint8_t* key = NULL
    cdef int64_t key_bytes = -1
    cdef int64_t timestamp_ms = records.default_timestamp_ms
    cdef int64_t before = records.objects.used_bytes
    cdef TextFault fault
    records.pair_count = 0
    if columns.value < 0:
        if object_store(&records.objects, columns) != TEXT_OK:
            return TEXT_NO_MEMORY
        # The objects may move yet: their places are filled in at the end.
        return record_push(
            records, NULL, records.objects.used_bytes - before, NULL, -1, timestamp_ms)
    if columns.key >= 0 and columns.cells[columns.key].text_bytes >= 0:
        key = columns.cells[columns.key].text
        key_bytes = columns.cells[columns.key].text_bytes
    if columns.timestamp >= 0 and columns.cells[columns.timestamp].text_bytes >= 0:
        cell = &columns.cells[columns.timestamp]
        fault_at[0] = cell.text
        if timestamp_load(cell, &timestamp_ms) != TEXT_OK:
            return TEXT_NOT_A_TIME
    if columns.headers >= 0 and columns.cells[columns.headers].text_bytes >= 0:
        cell = &columns.cells[columns.headers]
        fault_at[0] = cell.text
        cursor.at = cell.text
        cursor.end = cell.text + cell.text_bytes
        fault = headers_load(records, &cursor)
        if fault != TEXT_OK:
            return fault
        json_skip_space(&cursor)
        if cursor.at != cursor.end:
            return TEXT_NOT_HEADERS
    cell = &columns.cells[columns.value]
    return record_push(records, cell.text, cell.text_bytes, key, key_bytes, timestamp_ms)


cdef TextFault csv_records_parse(
    TextRecords* records, CsvColumns* columns, uint8_t* end, bint is_whole
) noexcept nogil:
    """Take each row that is not blank as a record, from `next` on, as far as rows are whole."""
    cdef uint8_t* at = records.next
    cdef uint8_t* after
    cdef uint8_t* stop
    cdef uint8_t* fault_at = NULL
    cdef const uint8_t* value
    cdef int64_t line_count = 0
    cdef int64_t index
    cdef uint32_t crc
    cdef TextFault fault = TEXT_OK
    while at < end and at < records.stop_after and records.count < records.capacity:
        after = csv_row_end(at, end, is_whole, &line_count)
        if after == NULL:
            break
        # Before doubled quotes become one.
        crc = crc32c(records.crc, at, <size_t>(after - at))
        stop = after
        if (stop - 1)[0] == c'\n':
            stop -= 1
            if stop > at and (stop - 1)[0] == c'\r':
                stop -= 1
        if stop > at:
            fault = csv_row_load(
                at, stop, columns.cells, columns.count, &columns.cell_count, &fault_at)
            if fault == TEXT_OK and columns.cell_count != columns.count:
                fault_at = at
                fault = TEXT_CELL_COUNT
            if fault == TEXT_OK:
                fault = row_push(records, columns, &fault_at)
            if fault != TEXT_OK:
                records.fault_byte = fault_at - at
                break
        at = after
        records.crc = crc
        take_lines(records, at, line_count)
    if columns.value < 0:
        value = records.objects.data
        for index in range(records.count):
            records.values[index] = value
            value += records.value_bytes[index]
    return fault
