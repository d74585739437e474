"""Fields of records in Kafka's own layout: big-endian numbers, texts with their length before them.

Every read asks for its bytes first, and what is wrong is a CorruptRecordError that names the field.
"""

import struct

from eoslog.errors import CorruptRecordError

STRING_BYTES_MAX = 32_767

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_NULL = -1
_VARINT_BYTES_MAX = 5
_UUID_BYTES = 16


def encode_string(text: str) -> bytes:
    """A text; ValueError if it is longer than 32,767 bytes."""
    encoded = text.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise ValueError(f"a string must have at most {STRING_BYTES_MAX} bytes, got {len(encoded)}")
    return _INT16.pack(len(encoded)) + encoded


def encode_nullable_string(text: str | None) -> bytes:
    """A text or none; ValueError if it is longer than 32,767 bytes."""
    return _INT16.pack(_NULL) if text is None else encode_string(text)


def encode_bytes(data: bytes | None) -> bytes:
    """Bytes or none."""
    return _INT32.pack(_NULL) if data is None else _INT32.pack(len(data)) + data


class FieldCursor:
    """Reads fields one after the other, never beyond the end."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    def int8(self, field: str) -> int:
        return int(_INT8.unpack(self._take(_INT8.size, field))[0])

    def int16(self, field: str) -> int:
        return int(_INT16.unpack(self._take(_INT16.size, field))[0])

    def int32(self, field: str) -> int:
        return int(_INT32.unpack(self._take(_INT32.size, field))[0])

    def int64(self, field: str) -> int:
        return int(_INT64.unpack(self._take(_INT64.size, field))[0])

    def string(self, field: str) -> str:
        return self._text(self.int16(f"{field} length"), field)

    def nullable_string(self, field: str) -> str | None:
        length_bytes = self.int16(f"{field} length")
        return None if length_bytes == _NULL else self._text(length_bytes, field)

    def nullable_bytes(self, field: str) -> bytes | None:
        length_bytes = self.int32(f"{field} length")
        if length_bytes == _NULL:
            return None
        if length_bytes < 0:
            raise self._corrupt(f"{self._what}'s {field} has {length_bytes} bytes")
        return self._take(length_bytes, field)

    def count(self, field: str) -> int:
        """Read the count of the elements of an array."""
        count = self.int32(f"count of {field}")
        if count < 0:
            raise self._corrupt(f"{self._what} has {count} {field}")
        return count

    # The flexible form: lengths and counts are written with one added, and 0 is none at all.

    def compact_string(self, field: str) -> str:
        return self._text(self.unsigned_varint(f"{field} length") - 1, field)

    def compact_nullable_string(self, field: str) -> str | None:
        length_bytes = self.unsigned_varint(f"{field} length") - 1
        return None if length_bytes == _NULL else self._text(length_bytes, field)

    def compact_int32s(self, field: str) -> tuple[int, ...] | None:
        """Read an array of numbers; None if there is none."""
        count = self.unsigned_varint(f"count of {field}") - 1
        return None if count == _NULL else tuple(self.int32(field) for _ in range(count))

    def uuid(self, field: str) -> bytes:
        return self._take(_UUID_BYTES, field)

    def tagged_fields(self) -> dict[int, bytes]:
        """Read the fields that are there or not, by their tags."""
        found = {}
        for _ in range(self.unsigned_varint("count of tagged fields")):
            tag = self.unsigned_varint("tag")
            found[tag] = self._take(self.unsigned_varint("size of a tagged field"), "tagged field")
        return found

    def skip_tagged_fields(self) -> None:
        """Pass over fields that are there or not, such as the topic's id."""
        self.tagged_fields()

    def unsigned_varint(self, field: str) -> int:
        number = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self._take(1, field)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise self._corrupt(f"{self._what}'s {field} is no number of 32 bits")

    def end(self) -> None:
        """Check that nothing follows."""
        left = len(self._data) - self._at
        if left:
            raise self._corrupt(f"{left} bytes follow {self._what}")

    def _text(self, length_bytes: int, field: str) -> str:
        if length_bytes < 0:
            raise self._corrupt(f"{self._what}'s {field} has {length_bytes} bytes")
        try:
            return self._take(length_bytes, field).decode()
        except UnicodeDecodeError as error:
            raise self._corrupt(f"{self._what}'s {field} is not UTF-8") from error

    def _take(self, size_bytes: int, field: str) -> bytes:
        end = self._at + size_bytes
        if end > len(self._data):
            raise self._corrupt(f"{self._what} ends within its {field}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _corrupt(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError("", self._at, reason)
