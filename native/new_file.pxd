# Files and directories of a store: what root makes belongs to the owner of the directory it is in,
# and a group may read what is in a directory that it may read.
from posix.types cimport gid_t, mode_t, uid_t

cdef extern from "new_file.h" nogil:
    enum:
        EOS_ACCESS_CHANGED
        EOS_ACCESS_DIRECTORY
    int eos_open_owned(const char* path, int flags, mode_t mode) noexcept
    int eos_keep_access(int fd, const char* path) noexcept
    int eos_make_directory(const char* path) noexcept
    int eos_set_access(
        const char* path, bint group_reads, uid_t owner, gid_t group, int* outcome) noexcept
