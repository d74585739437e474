# cython: language_level=3
"""Rows as Python objects, taken apart into columns: values, or pairs of key and value."""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_SIZE


def plain_columns(list rows not None):
    """The values, the keys (None where rows have none) and the bytes of both; None for other rows.

    Rows are all bytes, str and None, or all tuples (key, value) of these. Text becomes UTF-8.
    """
    cdef Py_ssize_t count = len(rows)
    cdef Py_ssize_t index
    cdef Py_ssize_t held_bytes = 0
    cdef bint pairs = count > 0 and type(rows[0]) is tuple
    cdef list values = [None] * count
    cdef list keys = [None] * count if pairs else None
    for index in range(count):
        cell = rows[index]
        if pairs:
            if type(cell) is not tuple or PyTuple_GET_SIZE(cell) != 2:
                return None
            key = (<tuple>cell)[0]
            cell = (<tuple>cell)[1]
            if key is not None:
                key = plain_cell(key)
                if key is None:
                    return None
                held_bytes += PyBytes_GET_SIZE(key)
                keys[index] = key
        if cell is not None:
            cell = plain_cell(cell)
            if cell is None:
                return None
            held_bytes += PyBytes_GET_SIZE(cell)
            values[index] = cell
    return values, keys, held_bytes


cdef inline object plain_cell(object cell):
    """The bytes of a cell; None if it is neither bytes nor text that has a UTF-8 form."""
    if type(cell) is bytes:
        return cell
    if type(cell) is str:
        try:
            return (<str>cell).encode()
        except UnicodeEncodeError:
            return None
    return None
