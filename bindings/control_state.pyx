# cython: language_level=3
"""What the control page of a partition says, without opening the partition."""

from typing import NamedTuple

from libc.string cimport memcpy

from eoslog.native.control_page cimport (
    CONTROL_PAGE_BYTES, CONTROL_PAGE_MAGIC, ControlPage, control_is_ready,
)


class ControlState(NamedTuple):
    """A look at a page that others may be changing: each field by itself is what it was then."""

    session: bytes
    topic_id: bytes
    ready: bool
    sealed: bool
    deleted: bool
    log_end_offset: int
    recovery_point: int
    hold_offset: int


def control_state(str path not None):
    """The ControlState of a file; None where there is no file, or it is no page."""
    cdef ControlPage page
    cdef bytes raw
    cdef bytes session
    try:
        with open(path, "rb") as file:
            raw = file.read(CONTROL_PAGE_BYTES)
    except FileNotFoundError:
        return None
    if len(raw) < CONTROL_PAGE_BYTES:
        return None
    memcpy(&page, <const char*>raw, sizeof(ControlPage))
    session = raw[16:32]
    if page.magic != CONTROL_PAGE_MAGIC:
        return None
    ready = control_is_ready(&page, <const unsigned char*><const char*>session)
    return ControlState(
        session, (<const char*>page.topic_id)[:16], bool(ready), bool(page.sealed),
        bool(page.deleted), page.log_end_offset, page.recovery_point, page.hold_offset)
