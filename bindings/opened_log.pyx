# cython: language_level=3
"""The native log of one partition, opened: its control page, its directories, where it begins and
ends.
"""

import os
import re
import threading

from eoslog import errors

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from eoslog.bindings.status cimport raise_status
from eoslog.native.atomics cimport load_acquire_64
from eoslog.native.control_page cimport CONTROL_PAGE_BYTES, ControlPage, control_init, control_load
from eoslog.native.log_recovery cimport log_open
from eoslog.native.mapped_io cimport (
    close_fd, eos_file_bytes, eos_map, eos_open, eos_reserve, munmap,
)
from eoslog.native.partition_log cimport (
    SegmentFile, log_end, log_free, log_init, log_stable_end, pthread_mutex_lock,
    pthread_mutex_unlock,
)
from eoslog.native.segment cimport Segment
from eoslog.native.status cimport STATUS_OK

_SEGMENT_NAME = re.compile(r"^(\d{20})\.log$")
_SNAPSHOT_NAME = re.compile(r"^(\d{20})\.snapshot$")
_DERIVED_SUFFIXES = (".index", ".timeindex", ".txnindex")
_LEFTOVER_SUFFIXES = (".deleted", ".cleaned", ".snapshot.tmp")
_NO_LIMIT = 0x7FFFFFFFFFFFFFFF
_SETTINGS = ("segment.bytes", "segment.index.bytes", "index.interval.bytes", "segment.ms",
             "max.message.bytes")


cdef class OpenedLog:
    """What reading, appending and keeping producers have in common."""

    def __cinit__(self):
        memset(&self._log, 0, sizeof(NativeLog))
        self._page_map = NULL

    def __init__(self, str path, *, str topic, Py_ssize_t partition, str control_path,
                 str spare_path, str cut_path, dict config, bint clean, Py_ssize_t recovery_point=0,
                 Py_ssize_t log_start_offset=0):
        if self._page_map != NULL:
            raise ValueError("a partition log is opened once")
        self.path = path
        self.topic = topic
        if not 0 <= partition <= 0x7FFFFFFF:
            raise ValueError(f"partition {partition}")
        self.partition = <int>partition
        self._close_lock = threading.Lock()
        self._directory_bytes = os.fsencode(path)
        self._spare_bytes = os.fsencode(spare_path)
        self._cut_bytes = os.fsencode(cut_path)
        for directory in (spare_path, cut_path, os.path.dirname(control_path)):
            os.makedirs(directory, mode=0o700, exist_ok=True)
        self._log.directory = self._directory_bytes
        self._log.spare_directory = self._spare_bytes
        self._log.cut_directory = self._cut_bytes
        self._set_options(config)
        log_init(&self._log)
        self._open_page(control_path)
        self._open_log(clean, recovery_point, log_start_offset)

    def __dealloc__(self):
        log_free(&self._log)
        if self._page_map != NULL:
            munmap(self._page_map, CONTROL_PAGE_BYTES)

    cdef int _set_options(self, dict config) except -1:
        for name in _SETTINGS:
            if name not in config:
                raise ValueError(f"config has no {name!r}")
        self._log.options.segment.segment_bytes = config["segment.bytes"]
        self._log.options.segment.segment_index_bytes = config["segment.index.bytes"]
        self._log.options.segment.index_interval_bytes = config["index.interval.bytes"]
        self._log.options.segment.fill_bytes = config.get("eoslog.fill.bytes", 1 << 20)
        self._log.options.segment_ms = config["segment.ms"]
        self._log.options.max_message_bytes = config["max.message.bytes"]
        self._log.options.timestamp_before_max_ms = config.get(
            "message.timestamp.before.max.ms", _NO_LIMIT)
        self._log.options.timestamp_after_max_ms = config.get(
            "message.timestamp.after.max.ms", _NO_LIMIT)
        self._log.options.spare_segments = config.get("eoslog.spare.segments", 1)
        self._log.options.leader_epoch = 0
        if not 0 < self._log.options.segment.segment_bytes <= 0x7FFFFFFF:
            raise ValueError(f"segment.bytes {config['segment.bytes']}")
        if self._log.options.segment.fill_bytes < 4096:
            raise ValueError(f"eoslog.fill.bytes {config['eoslog.fill.bytes']}: 4096 or more")
        return 0

    cdef int _open_page(self, str control_path) except -1:
        cdef bytes path = os.fsencode(control_path)
        cdef bytes boot_id = _boot_id()
        cdef int64_t file_bytes = 0
        cdef int64_t modified_ms = 0
        cdef int fd = -1
        cdef int error = eos_open(path, True, False, &fd)
        if error == 0:
            error = eos_file_bytes(fd, &file_bytes, &modified_ms)
            if error == 0 and file_bytes < CONTROL_PAGE_BYTES:
                error = eos_reserve(fd, 0, CONTROL_PAGE_BYTES, CONTROL_PAGE_BYTES)
            if error == 0:
                error = eos_map(fd, CONTROL_PAGE_BYTES, True, &self._page_map)
            close_fd(fd)
        if error == 0:
            self._log.page = <ControlPage*>self._page_map
            error = control_init(self._log.page, <const uint8_t*><const char*>boot_id)
        if error != 0:
            raise OSError(error, os.strerror(error), control_path)
        return 0

    cdef int _open_log(self, bint clean, int64_t recovery_point, int64_t log_start) except -1:
        cdef list found = []
        cdef SegmentFile* files
        cdef Fault fault
        cdef Status status
        cdef int32_t count
        cdef Py_ssize_t index
        names = set(os.listdir(self.path))
        for name in sorted(names):
            match = _SEGMENT_NAME.match(name)
            if match:
                found.append((int(match[1]), os.path.getsize(os.path.join(self.path, name))))
            elif name.endswith(_LEFTOVER_SUFFIXES) or (
                    name.endswith(_DERIVED_SUFFIXES) and name[:20] + ".log" not in names):
                os.unlink(os.path.join(self.path, name))
        count = <int32_t>len(found)
        files = <SegmentFile*>malloc((count + 1) * sizeof(SegmentFile))
        if files == NULL:
            raise MemoryError(f"{count} segments")
        for index in range(count):
            files[index].base_offset = found[index][0]
            files[index].file_bytes = found[index][1]
        self._fault_init(&fault)
        with nogil:
            status = log_open(
                &self._log, files, count, clean, recovery_point, log_start, &fault)
        free(files)
        if status != STATUS_OK:
            self._raise(status, &fault)
        self._remove_stray_snapshots()
        return 0

    cdef void _fault_init(self, Fault* fault) noexcept:
        memset(fault, 0, sizeof(Fault))
        fault.base_offset = -1

    cdef int _raise(self, Status status, Fault* fault) except -1:
        return raise_status(status, fault, f"{self.topic}-{self.partition}", self.path)

    cdef int _check_open(self) except -1:
        if self._page_map == NULL or self._log.closed or not self._log.opened:
            raise errors.LogClosedError(f"{self.topic}-{self.partition} is closed")
        return 0

    cdef int _raise_read(self, Status status, Fault* fault, int64_t offset) except -1:
        return raise_status(
            status, fault, f"{self.topic}-{self.partition} at offset {offset}", self.path)

    cdef int64_t _bound(self, int64_t upper_bound, bint committed) noexcept nogil:
        cdef int64_t end = log_end(&self._log)
        if committed:
            end = log_stable_end(&self._log)
        return end if upper_bound < 0 or upper_bound > end else upper_bound

    @property
    def log_start_offset(self):
        self._check_open()
        return control_load(&self._log.page.log_start_offset)

    @property
    def log_end_offset(self):
        self._check_open()
        return log_end(&self._log)

    @property
    def high_watermark(self):
        self._check_open()
        return control_load(&self._log.page.high_watermark)

    @property
    def last_stable_offset(self):
        self._check_open()
        return log_stable_end(&self._log)

    @property
    def recovery_point(self):
        """Everything below is synced."""
        return self._log.recovery_point

    @property
    def sync_count(self):
        """How often the log was synced since it was opened."""
        return self._log.sync_count

    @property
    def cut_bytes(self):
        """Bytes that recovery cut off on opening and kept in the cut directory."""
        return self._log.cut_bytes

    @property
    def failed(self):
        """Whether a sync failed: appends are refused until the store was reopened."""
        return self._log.failed_errno != 0

    @property
    def segment_count(self):
        return self._log.segment_count

    @property
    def active_base_offset(self):
        self._check_open()
        return control_load(&self._log.page.active_base_offset)

    @property
    def size_bytes(self):
        """Bytes of all batches."""
        cdef int64_t total = 0
        cdef int32_t index
        self._check_open()
        with nogil:
            pthread_mutex_lock(&self._log.segments_lock)
            for index in range(self._log.segment_count):
                total += load_acquire_64(&self._log.segments[index].used_bytes)
            pthread_mutex_unlock(&self._log.segments_lock)
        return total

    def segments(self):
        """One dict a segment, oldest first: base_offset, size_bytes, largest_timestamp_ms, path."""
        cdef list found = []
        cdef Segment* segment
        cdef int32_t index
        self._check_open()
        pthread_mutex_lock(&self._log.segments_lock)
        for index in range(self._log.segment_count):
            segment = self._log.segments[index]
            found.append([segment.base_offset, segment.used_bytes, segment.max_timestamp,
                          segment.loaded, segment.time_index.count])
        pthread_mutex_unlock(&self._log.segments_lock)
        return [self._describe(*fields) for fields in found]

    def _describe(self, base_offset, size_bytes, max_timestamp, loaded, time_entries):
        path = os.path.join(self.path, f"{base_offset:020d}.log")
        if max_timestamp < 0 and not loaded:
            max_timestamp = _last_time_entry(path[:-4] + ".timeindex")
        if max_timestamp < 0:
            max_timestamp = int(os.path.getmtime(path) * 1000)
        return {"base_offset": base_offset, "size_bytes": size_bytes,
                "largest_timestamp_ms": max_timestamp, "path": path}

    def _snapshot_path(self, offset):
        return os.path.join(self.path, f"{offset:020d}.snapshot")

    def snapshots(self):
        """Offsets of the .snapshot files, in order."""
        return sorted(int(match[1]) for match in map(_SNAPSHOT_NAME.match, os.listdir(self.path))
                      if match)

    def _remove_stray_snapshots(self):
        """Keep the snapshots at segments' base offsets, and the newest one that the log reaches.

        The newest may be all that remembers producers whose batches were deleted.
        """
        names = os.listdir(self.path)
        bases = {int(match[1]) for match in map(_SEGMENT_NAME.match, names) if match}
        found = self.snapshots()
        end = log_end(&self._log)
        newest = max((offset for offset in found if offset <= end), default=-1)
        stray = [offset for offset in found if offset != newest and offset not in bases]
        for offset in stray:
            os.unlink(self._snapshot_path(offset))


def _last_time_entry(path):
    """Timestamp of a .timeindex file's last entry, -1 if there is none."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return -1
    whole = len(raw) - len(raw) % 12
    return int.from_bytes(raw[whole - 12:whole - 4], "big", signed=True) if whole else -1


def _boot_id():
    """16 bytes that change with each boot of this machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
