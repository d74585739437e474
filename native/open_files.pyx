# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""How many segment files this process has open, and whose are closed when they become too many.

A store may have more partitions than a process may have files. So a log that has files open is an
owner in a ring, and before a file is opened beyond the bound a hand goes around it: an owner that
was used since the hand last came by is passed once, the next one's files are closed. They are
opened again when they are needed. Some keep their maps, which have a bound of their own.

Invariants: no thread waits for a log's lock while it holds the ring's, since callers hold locks of
another log; an owner enters and leaves the ring under a lock of its own, as its files are opened
and closed; it has left the ring before its memory is freed.
"""
from libc.stdint cimport int64_t

from eoslog.native.atomics cimport add_64, load_acquire_64

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes) noexcept
    int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept
    int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept
    int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept
    int pthread_atfork(
        void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
        void (*child)() noexcept nogil) noexcept

cdef extern from "open_files.h" nogil:
    int64_t open_files_allowed() noexcept

cdef enum:
    # Each takes three mappings at most; a process may have 65,530.
    OPEN_FILES_MAX = 8192

cdef pthread_mutex_t ring_lock
cdef FileOwner* hand = NULL
cdef int64_t open_count = 0
cdef int64_t mapped_count = 0
cdef int64_t forks = 0


cdef void begin_in_child() noexcept nogil:
    """The logs of the parent are not the child's; what it opens is in a ring of its own."""
    global hand, forks
    pthread_mutex_init(&ring_lock, NULL)
    hand = NULL
    forks += 1


pthread_mutex_init(&ring_lock, NULL)
pthread_atfork(NULL, NULL, begin_in_child)


cdef void file_owner_enter(FileOwner* owner) noexcept nogil:
    """An owner opened files. It may be in the ring already."""
    global hand
    owner.used = True
    if owner.next != NULL:
        return
    pthread_mutex_lock(&ring_lock)
    owner.process = forks
    if hand == NULL:
        owner.previous = owner
        owner.next = owner
        hand = owner
    else:
        # Where the hand comes last.
        owner.next = hand
        owner.previous = hand.previous
        hand.previous.next = owner
        hand.previous = owner
    pthread_mutex_unlock(&ring_lock)


cdef void file_owner_leave(FileOwner* owner) noexcept nogil:
    """An owner has no file open any more, or soon no memory. It may have left already."""
    pthread_mutex_lock(&ring_lock)
    file_owner_unlink(owner)
    pthread_mutex_unlock(&ring_lock)


cdef void file_owner_unlink(FileOwner* owner) noexcept nogil:
    """The same for a CloseFiles, which is called with the ring locked."""
    global hand
    if owner.next == NULL or owner.process != forks:
        return
    if hand == owner:
        hand = NULL if owner.next == owner else owner.next
    owner.previous.next = owner.next
    owner.next.previous = owner.previous
    owner.next = NULL


cdef void open_files_count(int64_t change) noexcept nogil:
    """Count files that were opened, or closed."""
    add_64(&open_count, change)


cdef int64_t open_files_now() noexcept nogil:
    return load_acquire_64(&open_count)


cdef void mapped_alone_count(int64_t change) noexcept nogil:
    """Count files that are mapped and lost their descriptor, or have one again."""
    add_64(&mapped_count, change)


cdef int64_t mapped_files_now() noexcept nogil:
    """Count of the files that are open or mapped."""
    return load_acquire_64(&open_count) + load_acquire_64(&mapped_count)


cdef int64_t open_files_most() noexcept nogil:
    """Return the bound: so many files may be open."""
    return min(open_files_allowed() // 2, <int64_t>OPEN_FILES_MAX)


cdef void open_files_make_room() noexcept nogil:
    """Before a file is opened: close some that were not used of late, if half of the files that the
    process may have are open. What else it does needs the other half.
    """
    cdef int64_t most = open_files_most()
    # Where another thread goes around there will be room.
    if open_files_now() < most or pthread_mutex_trylock(&ring_lock) != 0:
        return
    # Several at once, fewer of those that have to be synced first: that takes long.
    if not go_around(most - 1 - most // 8, False):
        go_around(most - 1 - most // 64, True)
    pthread_mutex_unlock(&ring_lock)


cdef bint go_around(int64_t wanted_count, bint unsynced) noexcept nogil:
    """Move the hand at most twice around until so few files are open; False if they are not."""
    global hand
    cdef FileOwner* owner
    cdef int64_t _step
    for _step in range(2 * open_files_now()):
        if hand == NULL or open_files_now() <= wanted_count:
            break
        owner = hand
        hand = owner.next
        if owner.used:
            owner.used = False
        else:
            owner.close_files(owner.owner, unsynced)
    return open_files_now() <= wanted_count
