# Syncs of what has to be opened for it. Each answers 0 or an errno.

cdef extern from "named_sync.h" nogil:
    int eos_sync_named(const char* path, bint directory, int beside_fd) noexcept
    int eos_sync_file_system(int fd) noexcept
