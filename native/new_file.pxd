# Files and directories that root makes belong to the owner of the directory they are in.
from posix.types cimport mode_t

cdef extern from "new_file.h" nogil:
    int eos_open_owned(const char* path, int flags, mode_t mode) noexcept
    int eos_make_directory(const char* path) noexcept
