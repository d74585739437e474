# cython: language_level=3
"""A consumer's poll while it reads: what was handed out before it, and nobody in between.

A handler of a signal runs between any two steps of Python code. From a poll's first reading on,
until its caller has what was read, the positions run ahead of what was handed out. What such a
handler commits meanwhile is what was handed out before; what would read, or move a position, is
refused while the poll reads.

The reading's end is no Python code: no interrupt leaves the consumer refusing all.
"""

cimport cython

from eoslog.bindings.one_at_a_time import ReentrantCallError


@cython.final
cdef class PollUnderWay:
    """Of one consumer, whose thread guards it.

    `handed_out` are the positions in front of what a poll has read, until it has returned; at other
    times, also while a poll waits or follows its group, None.
    """

    cdef object _positions
    cdef bint _reading
    cdef public object handed_out

    def __cinit__(self, positions not None):
        self._positions = positions
        self._reading = False
        self.handed_out = None

    def run(self, poll, *arguments):
        """Poll. What is not handed out, because of an error or an interrupt, counts as not read.

        Raises ReentrantCallError if the consumer is just reading.
        """
        self.check()
        self.handed_out = None
        try:
            return poll(*arguments)
        except BaseException:
            self.take_back()
            raise
        finally:
            self._reading = False

    def begin_reading(self):
        """From here on positions may move."""
        self.handed_out = self._positions.all()
        self._reading = True

    def end_reading(self):
        """Nothing was read, or the positions are in front of it again."""
        self._reading = False
        self.handed_out = None

    def take_back(self):
        """What was read is not handed out."""
        if self.handed_out is not None:
            self._positions.put_back(self.handed_out)
        self.end_reading()

    def check(self):
        """Raise ReentrantCallError if the consumer is just reading."""
        if self._reading:
            raise ReentrantCallError(
                "a consumer that is just reading was called from a handler of a signal, from a "
                "function that its poll calls or from another thread: this call did nothing")
