# Columns handed in from Python, held for the length of one call.
from eoslog.bindings.column_holder cimport ColumnHolder

cdef ColumnHolder open_column(object source, str name)
cdef ColumnHolder open_headers(object headers, Py_ssize_t count)
cdef object open_timestamps(object timestamps, Py_ssize_t count)
cdef bytes encode_headers(object headers)
