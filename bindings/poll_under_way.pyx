# cython: language_level=3
"""A consumer's poll while it reads: what was handed out before it, and nobody in between.

A handler of a signal runs between any two steps of Python code. From a poll's first reading on,
until its caller has what was read, the positions run ahead of what was handed out. What such a
handler commits meanwhile is what was handed out before; what would read, move a position or change
the partitions is refused while the poll reads, and while it follows its group.

The reading's end is no Python code: no interrupt leaves the consumer refusing all.
"""

cimport cython

from eoslog.errors import ConcurrentAccessError


@cython.final
cdef class PollUnderWay:
    """Of one consumer, whose thread guards it.

    `handed_out` are the positions in front of what a poll has read, until it has returned; at other
    times, also while a poll waits or follows its group, None.
    """

    cdef object _positions
    cdef bint _busy
    cdef public object handed_out

    def __cinit__(self, positions not None):
        self._positions = positions
        self._busy = False
        self.handed_out = None

    def run(self, poll, *arguments):
        """Poll, and leave the positions in front of what was read. After an error or an interrupt
        nothing counts as read.

        Raises ConcurrentAccessError if the consumer is just reading.
        """
        try:
            return self.read(poll, *arguments)
        finally:
            self._busy = False

    def read(self, poll, *arguments):
        """As `run`; where something was read the poll is under way until `is_read` is set, and it
        can be taken back.
        """
        self.check()
        self.handed_out = None
        try:
            return poll(*arguments)
        except BaseException:
            self.take_back()
            raise

    @property
    def is_read(self):
        """Whether no poll is under way that read something. Set to True when its caller gets it:
        that is a store of an attribute, at which no handler comes in.
        """
        return not self._busy

    @is_read.setter
    def is_read(self, bint value):
        self._busy = not value
        self.handed_out = None

    def begin_following(self):
        """From here on partitions may come and go; no position is ahead."""
        self.handed_out = None
        self._busy = True

    def call_out(self, function, *arguments):
        """Call one of the user's functions, which may do all with the consumer."""
        cdef bint busy = self._busy
        self._busy = False
        try:
            function(*arguments)
        finally:
            self._busy = busy

    def begin_reading(self):
        """From here on positions may move."""
        self.handed_out = self._positions.all()
        self._busy = True

    def end(self):
        """Nothing was read, or the positions are in front of it again."""
        self._busy = False
        self.handed_out = None

    def take_back(self):
        """What was read is not handed out. No Python code: a second interrupt comes behind it."""
        if self.handed_out is not None:
            self._positions.current = self.handed_out
        self.end()

    def check(self):
        """Raise ConcurrentAccessError if the consumer is just reading."""
        if self._busy:
            raise ConcurrentAccessError(
                "two threads use one consumer at once, or the same thread from a signal handler: "
                "this call did nothing; make a consumer for each thread")
