"""Kafka's way to write a 128-bit id: 22 characters of URL-safe base64, without padding."""

import base64
import binascii
import os

ID_BYTES = 16
_RESERVED = (bytes(ID_BYTES), bytes(ID_BYTES - 1) + b"\x01")


def new_id() -> str:
    """A random id that Kafka would choose too: none of its reserved ones, no leading dash."""
    while True:
        raw = bytearray(os.urandom(ID_BYTES))
        raw[6] = raw[6] & 0x0F | 0x40  # Version 4 ...
        raw[8] = raw[8] & 0x3F | 0x80  # ... of RFC 9562's first variant.
        text = base64.urlsafe_b64encode(raw).decode().rstrip("=")
        if bytes(raw) not in _RESERVED and not text.startswith("-"):
            return text


def id_bytes(text: str) -> bytes:
    """The 16 bytes of an id; ValueError if the text is none, or the reserved id of all zeros."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not an id") from error
    if len(raw) != ID_BYTES or len(text) != 22:
        raise ValueError(f"{text!r} is not an id of {ID_BYTES} bytes")
    if raw == bytes(ID_BYTES):
        raise ValueError("the id of all zeros is reserved")
    return raw
