# Who has segment files open in this process, so that those used least recently can be closed.
from libc.stdint cimport int64_t

# Closes the files of its owner that are not in use; with `unsynced`, also such as have to be synced
# first. It waits for no lock. If nothing stays open it unlinks the owner, under the owner's lock.
ctypedef void (*CloseFiles)(void* owner, bint unsynced) noexcept nogil

cdef struct FileOwner:
    FileOwner* previous
    FileOwner* next                  # NULL: it is not in the ring.
    CloseFiles close_files
    void* owner
    int64_t process                  # Whose ring it is in: counts forks.
    bint used                        # Since the hand last came by.

cdef void file_owner_enter(FileOwner* owner) noexcept nogil
cdef void file_owner_leave(FileOwner* owner) noexcept nogil
cdef void file_owner_unlink(FileOwner* owner) noexcept nogil
cdef void open_files_count(int64_t change) noexcept nogil
cdef int64_t open_files_now() noexcept nogil
cdef void mapped_alone_count(int64_t change) noexcept nogil
cdef int64_t mapped_files_now() noexcept nogil
cdef int64_t open_files_most() noexcept nogil
cdef void open_files_make_room() noexcept nogil
