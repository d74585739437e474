# The calls to the operating system that a log needs. Each answers 0 or an errno.
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "mapped_io.h" nogil:
    int eos_open(const char* path, bint create, bint read_only, int* fd_out) noexcept
    int eos_open_staged(const char* path, int* fd_out) noexcept
    int eos_file_bytes(int fd, int64_t* bytes_out, int64_t* modified_ms_out) noexcept
    int eos_file_length(int fd, int64_t* bytes_out) noexcept
    int eos_pwrite_all(
        int fd, const uint8_t* data, size_t bytes, int64_t position_bytes) noexcept
    int eos_pwritev_all(int fd, iovec* parts, int count, int64_t position_bytes) noexcept
    int eos_pread_upto(
        int fd, uint8_t* to, size_t bytes, int64_t position_bytes, size_t* done_bytes) noexcept
    int eos_pread_all(int fd, uint8_t* to, size_t bytes, int64_t position_bytes) noexcept
    int eos_truncate(int fd, int64_t bytes) noexcept
    int eos_reserve(
        int fd, int64_t reserve_from, int64_t upto, int64_t fill_bytes) noexcept
    bint eos_is_in_memory(int fd) noexcept
    int eos_sync_data(int fd) noexcept
    int eos_sync_file(int fd) noexcept
    int eos_sync_directory(const char* path) noexcept
    int eos_map(int fd, size_t bytes, bint writable, uint8_t** map_out) noexcept
    int eos_map_apart(int fd, size_t bytes, uint8_t** map_out) noexcept
    void eos_unmap_file(void* map, size_t bytes) noexcept
    int eos_share(int fd) noexcept
    int eos_have_alone(int fd) noexcept
    bint eos_maps_keep_locks(const char* directory) noexcept
    int eos_identity_of(int fd, uint64_t* device, uint64_t* inode) noexcept
    int eos_identity(const char* path, uint64_t* device, uint64_t* inode) noexcept
    int eos_is_at(int fd, const char* path) noexcept
    bint eos_is_link(const char* path) noexcept
    int eos_own_link(const char* path) noexcept
    ctypedef struct WatchedFile:
        const char* path
        const char* text
        uint64_t device
        uint64_t inode
        int64_t changed_s
        int64_t changed_ns
    bint eos_is_unchanged(const WatchedFile* watched) noexcept
    int eos_count_names(int fd, int64_t* names_out) noexcept
    const char* EOS_FILE_LOST
    int eos_still_holds(int fd, int64_t file_bytes) noexcept
    int eos_still_named(
        const char* path, uint64_t device, uint64_t inode, int64_t file_bytes) noexcept
    int eos_link(const char* from_path, const char* to_path) noexcept
    int eos_rename(const char* from_path, const char* to_path) noexcept
    int64_t eos_first_hole(int fd, int64_t begin, int64_t upto) noexcept
    int eos_read_apart(int fd, uint8_t* map, int64_t start, int64_t upto) noexcept
    void eos_end_apart(int fd, uint8_t* map, int64_t start, int64_t upto) noexcept
    int eos_bytes_before_zeros(
        int fd, int64_t start, int64_t bytes, int64_t* found_bytes) noexcept
    int eos_copy_bytes(int from_fd, int64_t start, int64_t bytes, int to_fd) noexcept
    void eos_dirty_again(uint8_t* map, size_t bytes) noexcept
    int64_t eos_page_start(int64_t position) noexcept
    int64_t eos_page_end(int64_t position) noexcept
    void eos_populate(uint8_t* map, size_t bytes) noexcept
    void eos_read_pages_alone(uint8_t* map, size_t bytes, bint alone) noexcept
    void eos_read_pages(uint8_t* map, size_t bytes) noexcept
    uint8_t* eos_map_anonymous(size_t bytes) noexcept
    int64_t eos_now_ms() noexcept
    int64_t eos_elapsed_ms() noexcept

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void* map, size_t bytes) noexcept
    int madvise(void* map, size_t bytes, int advice) noexcept
    int MADV_DONTNEED

cdef extern from "<unistd.h>" nogil:
    int close_fd "close"(int fd) noexcept

cdef extern from "<errno.h>" nogil:
    int EMFILE
    int ENFILE
    int ENOSPC
    int EDQUOT
    int EFBIG
    int ENOENT
    int ENOMEM
    int EROFS
    int EACCES
    int EIO
    int ENODATA
    int EWOULDBLOCK
