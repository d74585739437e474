# cython: language_level=3
"""Threads for the length of a block: when it is left, however that comes, all of them have ended.

They are started, noted and waited for by C. Python's own executors wait for a thread by locks that
an interrupt (Ctrl-C) of the thread's owner may leave held, and then for ever.
"""

import _thread

cimport cython


def wait_for_release(lock not None):
    """Wait until somebody has released a lock, and leave it released. An interrupt comes before or
    behind, and not in between.
    """
    lock.acquire()
    lock.release()


@cython.final
cdef class JoinedThreads:
    """A block; of each thread started in it a lock, which is held until the thread ends.

    Its length is the number of threads that were started and not waited for.
    """

    cdef list _ends

    def __cinit__(self):
        self._ends = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        interrupt = None
        while self._ends:
            try:
                self.join()
            except BaseException as raised:
                interrupt = raised
        if interrupt is not None and kind is None:
            raise interrupt

    def __len__(self):
        return len(self._ends)

    def start(self, work not None):
        """Call `work()` in a thread of its own. Raises RuntimeError if there may be no more."""
        cdef _Running running = _Running.__new__(_Running)
        running.end = end = _thread.allocate_lock()
        end.acquire()
        self._ends.append(end)
        try:
            _thread.start_new_thread(_run, (work, running))
        except BaseException:
            self._ends.remove(end)
            raise

    def join(self):
        """Wait until all have ended. An interrupt is raised, and the others go on."""
        while self._ends:
            end = self._ends[-1]
            end.acquire()
            self._ends.remove(end)  # By now others may have been started.


@cython.final
@cython.no_gc
cdef class _Running:
    """One of a thread's arguments: it goes with the thread, also with one that found no memory for
    its first steps and never came to its work.
    """

    cdef object end

    def __dealloc__(self):
        if self.end is not None:
            self.end.release()


def _run(work, running):
    work()
