# cython: language_level=3
"""Faults of calls that this process makes to the kernel, for tests: see native's call_faults.h.

The caller has a lock around every call, but those that only read.
"""

import os

from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer

from eoslog.native.call_faults cimport (
    CALL_FAULT_DELAY, CALL_FAULT_FULL, CALL_FAULT_PLACE_BYTES, CALL_FAULT_SYNC, call_clock_move,
    call_die_function, call_fault_arm, call_fault_disarm, call_fault_hits, call_fault_last,
    call_fault_seen, call_module_take, call_slots_give_back,
)

cdef extern from "<limits.h>":
    enum:
        PATH_MAX

cdef extern from "Python.h":
    object PyLong_FromLong(long value)

KINDS = {"sync": CALL_FAULT_SYNC, "delay": CALL_FAULT_DELAY, "full": CALL_FAULT_FULL}


def take_module(path):
    """Take over the calls of a loaded extension module, given as its file; how many are syncs.

    Raises LookupError if it is not loaded, OSError if the system does not let it be changed.
    """
    cdef bytes name = os.fsencode(path)
    return _taken(call_module_take(name, NULL, True, NULL, NULL), name)


def take_interpreter():
    """Take over the calls of Python itself, but that of the clock; how many are syncs."""
    return _taken(call_module_take(NULL, <void*>PyLong_FromLong, False, NULL, NULL), b"python")


def die_before_markers():
    """Have this process kill itself where a decided transaction is to be completed; in how many
    places. For a process that is to die.
    """
    from eoslog.bindings import transaction_entry
    from eoslog.native import transaction_log

    cdef bytes name = os.fsencode(transaction_entry.__file__)
    capsule = transaction_log.__pyx_capi__["transaction_complete"]
    cdef void* function = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))
    return _taken(call_module_take(name, NULL, False, function, call_die_function()), name)


cdef object _taken(int found, bytes name):
    if found == -1:
        raise LookupError(f"{os.fsdecode(name)} is not loaded")
    if found < 0:
        raise OSError(-found - 1, os.strerror(-found - 1), os.fsdecode(name))
    return found


def give_back():
    """Put all calls back. Raises OSError."""
    cdef int error = call_slots_give_back()
    if error:
        raise OSError(error, os.strerror(error))


def arm(kind, root, place, bint of_topic, *, Py_ssize_t number=1, int error=0,
        Py_ssize_t delay_ns=0):
    """Arm a fault for files below a directory; a number for the calls below.

    Raises OSError if too many are armed, ValueError if a name is too long.
    """
    cdef bytes root_name = os.fsencode(root)
    cdef bytes place_name = os.fsencode(place)
    cdef int at
    if len(root_name) >= PATH_MAX or len(place_name) >= CALL_FAULT_PLACE_BYTES:
        raise ValueError(f"a name of {len(root_name)} or {len(place_name)} bytes is too long")
    at = call_fault_arm(KINDS[kind], root_name, place_name, of_topic, number, error, delay_ns)
    if at < 0:
        raise OSError("too many faults are armed at once")
    return at


def disarm(int number):
    """End a fault; its counts stay until the next one is armed."""
    with nogil:
        call_fault_disarm(number)


def seen(int number):
    """The count of the calls that the fault is about, so far."""
    return call_fault_seen(number)


def hits(int number):
    """The count of the calls that failed, or took long, so far."""
    return call_fault_hits(number)


def last(int number):
    """The file of the newest sync of the store that the fault is not about; "" without one."""
    return os.fsdecode(call_fault_last(number))


def move_clock(Py_ssize_t ahead_ns):
    """Have the modules whose calls are taken over read the wall clock so many ns ahead."""
    call_clock_move(ahead_ns)
