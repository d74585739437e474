# The native log of one partition, opened, with its control page and its directories.
from libc.stdint cimport int64_t, uint8_t

from eoslog.bindings.commit_journal cimport CommitJournal
from eoslog.native.control_page cimport ControlView
from eoslog.native.partition_log cimport LogOptions, PartitionLog as NativeLog
from eoslog.native.status cimport Fault, Status


cdef class OpenedLog:
    cdef NativeLog _log
    cdef uint8_t* _page_map
    cdef uint8_t* _followed_map              # Of the processes that write, if the log is only read.
    cdef str _control_path
    cdef bytes _followed_bytes
    cdef bint _looks                         # What it is a copy of, or is to be, is looked at.
    cdef int64_t _looked_ns
    cdef int _page_fd                        # Locked until others may attach; else -1.
    cdef object _shared
    cdef CommitJournal _journal              # None: durability is by the files alone.
    cdef object _counters                    # The page that it counts in; None without any.
    cdef object __weakref__
    cdef int64_t _checkpoint                 # Everything below was synced, index files too.
    cdef bytes _directory_bytes, _spare_bytes, _cut_bytes, _page_directory_bytes, _watched_bytes
    cdef bytes _topic_id_bytes
    cdef readonly str path
    cdef readonly str shown_path             # As the user knows it; else that of an overlay.
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly bint attached              # Other processes had it open already.
    cdef readonly int64_t synced_before      # All below was synced, by an earlier session's note.
    cdef bint _was_clean                     # Opened by this process, after a clean close.
    cdef int64_t _synced_this_boot           # The same, by a process that was killed; else 0.
    cdef object _close_lock
    cdef object _load_producer, _reattach    # What the engine asks for; None before set_callbacks.
    cdef object _may_follow
    cdef bytes _opened_in                    # Session of the page when the log was opened last.

    cdef int _set_topic_options(self, LogOptions* options, dict config) except -1
    cdef int _set_options(self, dict config) except -1
    cdef int _watch(self, watched, str topic_id_text) except -1
    cdef int _open_page(
        self, str control_path, bytes session, bytes topic_id, bytes boot_id) except -1
    cdef int _make_own_page(self, bytes session, bytes topic_id) except -1
    cdef bint _follow_page(self, may_follow) except -1
    cdef int _look(self) except -1
    cdef int _check_files(self) except -1
    cdef bint _is_renewed(self, Status status, const Fault* fault) except -1
    cdef int _let_others_in(self) except -1
    cdef int _leave_journal(self) noexcept
    cdef int _give_up_opening(self) except -1
    cdef int _open_log(self, bint clean, int64_t recovery_point, int64_t log_start) except -1
    cdef int _attach(self) except -1
    cdef Status _try_to_attach(self, ControlView* view, Fault* fault) except *
    cdef bint _has_moved(self, const ControlView* view) noexcept
    cdef object _files_found(self)
    cdef bint _was_deleted(self, int64_t base_offset) except -1
    cdef int _view(self) except -1
    cdef int _view_log(self) except -1
    cdef int _refresh(self) except -1
    cdef void _fault_init(self, Fault* fault) noexcept
    cdef int _raise(self, Status status, Fault* fault, str path=*) except -1
    cdef int _before_repeat(self, Status status, Fault* fault, str path=*) except -1
    cdef int _before_read_again(
        self, Status status, Fault* fault, int64_t offset) except -1
    cdef int _raise_read(self, Status status, Fault* fault, int64_t offset) except -1
    cdef int _check_open(self) except -1
    cdef int _check_writable(self) except -1
    cdef int64_t _bound(self, int64_t upper_bound, bint committed) except -2
    cdef int64_t _readable_end(self, bint committed) except -1


cdef class LogOpening:
    cdef OpenedLog _log
