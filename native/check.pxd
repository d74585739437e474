# An invariant of our own code: stops the process when it does not hold (see include/check.h).
cdef extern from "check.h" nogil:
    void EOS_CHECK(bint condition, const char* what) noexcept
