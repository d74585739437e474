# Headers of records from Arrow lists.
from eoslog.bindings.arrow_array cimport Cells, OwnedArray
from eoslog.bindings.column_holder cimport ColumnHolder

cdef ColumnHolder headers_column(const Cells* cells, OwnedArray owner, str name)
