# cython: language_level=3
"""State in the control page of a partition, read without opening the partition."""

from typing import NamedTuple

from libc.string cimport memcpy

from eoslog.bindings.file_descriptor import open_regular
from eoslog.native.control_page cimport (
    CONTROL_PAGE_BYTES, CONTROL_PAGE_MAGIC, ControlFile, ControlPage, control_is_ready,
    control_start_before, control_synced_before,
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
    log_start_offset: int
    active_base_offset: int
    active_valid_bytes: int
    failed: bool


def control_state(str path not None):
    """The ControlState of a file; None where there is no file, or it is no page."""
    cdef ControlPage page
    cdef bytes raw = bytes_of_page(path)
    cdef bytes session
    if raw is None:
        return None
    memcpy(&page, <const char*>raw, sizeof(ControlPage))
    session = raw[16:32]
    if page.magic != CONTROL_PAGE_MAGIC:
        return None
    ready = control_is_ready(&page, <const unsigned char*><const char*>session)
    return ControlState(
        session, (<const char*>page.topic_id)[:16], bool(ready), bool(page.sealed),
        bool(page.deleted), page.log_end_offset, page.recovery_point, page.hold_offset,
        page.log_start_offset, page.active_base_offset, page.active_valid_bytes,
        page.failed_errno != 0)


def synced_before(str path not None, bytes topic_id not None, int partition):
    """Return the offset up to which a partition was synced, by the file of its page.

    0 if the file has nothing valid of that partition. It is true whichever process had the page
    last, also if that died before it had opened the partition.
    """
    cdef ControlFile file
    if not load_page(&file, path, topic_id):
        return 0
    return control_synced_before(
        &file.page, <const unsigned char*><const char*>topic_id, partition)


def start_before(str path not None, bytes topic_id not None, int partition):
    """Return the offset where a partition's log starts, by the file of its page; -1 if the file
    has nothing valid of that partition.
    """
    cdef ControlFile file
    if not load_page(&file, path, topic_id):
        return -1
    return control_start_before(
        &file.page, <const unsigned char*><const char*>topic_id, partition)


cdef bint load_page(ControlFile* file, str path, bytes topic_id) except -1:
    """False where there is no page."""
    cdef bytes raw = bytes_of_page(path)
    if len(topic_id) != 16:
        raise ValueError(f"topic id must have 16 bytes, got {len(topic_id)}")
    if raw is None:
        return False
    memcpy(file, <const char*>raw, CONTROL_PAGE_BYTES)
    return True


cdef bytes bytes_of_page(str path):
    """None where there is no file, or a shorter one than a page is."""
    cdef bytes raw
    try:
        with open(path, "rb", opener=open_regular) as file:
            raw = file.read(CONTROL_PAGE_BYTES)
    except FileNotFoundError:
        return None
    return raw if len(raw) == CONTROL_PAGE_BYTES else None
