"""Columns of byte strings, which can be measured, reordered, sliced and joined.

An append takes three kinds: lists of bytes, Arrow arrays, and two-dimensional numpy arrays of
uint8. Of Arrow arrays the buffers are not copied, and their own `take` and `slice` are used, so
that this module needs no pyarrow. A list or array that its owner may change later is copied.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from eoslog.bindings.columns import series_as_list
from eoslog.errors import MissingDependencyError

Sizes = npt.NDArray[np.int64]
Order = npt.NDArray[np.intp]

_OFFSETS_OF_TYPE = {
    "binary": np.int32,
    "string": np.int32,
    "large_binary": np.int64,
    "large_string": np.int64,
}
_FIXED = "fixed_size_binary["


class BytesColumn(Protocol):
    """A column of byte strings, some of which may be null."""

    def __len__(self) -> int: ...

    def for_encoder(self) -> object:
        """Return the column as `BatchEncoder.encode_columns` takes it."""

    def sizes(self) -> Sizes:
        """Return the bytes of each cell; of a null one 0, or the size of its place."""

    def take(self, order: Order) -> Self:
        """Return the cells in another order."""

    def slice(self, first: int, upper_bound: int) -> Self:
        """Return the cells [first, upper_bound)."""

    def joined(self, others: Sequence[Self]) -> Self:
        """Return these cells, then those of other columns of the same kind."""


class ListColumn:
    """A list of bytes and None."""

    def __init__(self, cells: list[bytes | None]) -> None:
        self._cells = cells

    @classmethod
    def checked(cls, cells: list[Any], name: str) -> "ListColumn":
        if not set(map(type, cells)) <= {bytes, type(None)}:
            wrong = next(
                index for index, cell in enumerate(cells) if type(cell) not in (bytes, type(None))
            )
            raise TypeError(f"{name}[{wrong}]: bytes or None, not {type(cells[wrong]).__name__}")
        return cls(cells)

    def __len__(self) -> int:
        return len(self._cells)

    def for_encoder(self) -> object:
        return self._cells

    def sizes(self) -> Sizes:
        lengths = (0 if cell is None else len(cell) for cell in self._cells)
        return np.fromiter(lengths, np.int64, len(self._cells))

    def take(self, order: Order) -> "ListColumn":
        cells = self._cells
        return ListColumn([cells[index] for index in order.tolist()])

    def slice(self, first: int, upper_bound: int) -> "ListColumn":
        return ListColumn(self._cells[first:upper_bound])

    def joined(self, others: Sequence["ListColumn"]) -> "ListColumn":
        return ListColumn([cell for column in (self, *others) for cell in column._cells])


class ArrowColumn:
    """A pyarrow array of binary or string, large or not, of a fixed size, or of nulls."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self._kind = str(array.type)

    @classmethod
    def checked(cls, array: Any, name: str) -> "ArrowColumn":
        kind = str(array.type)
        if kind not in _OFFSETS_OF_TYPE and kind != "null" and not kind.startswith(_FIXED):
            raise TypeError(f"{name}: an Arrow binary or string array, not one of {kind}")
        array.validate()  # Raises ValueError if the buffers are too short.
        return cls(array)

    def __len__(self) -> int:
        return len(self._array)

    def for_encoder(self) -> object:
        return self._array

    def sizes(self) -> Sizes:
        kind, count = self._kind, len(self._array)
        if count == 0 or kind == "null":
            return np.zeros(count, np.int64)
        if kind not in _OFFSETS_OF_TYPE:
            return np.full(count, int(kind[len(_FIXED) : -1]), np.int64)
        offsets = np.frombuffer(self._array.buffers()[1], _OFFSETS_OF_TYPE[kind])
        first = self._array.offset
        sizes = np.diff(offsets[first : first + count + 1]).astype(np.int64, copy=False)
        # pyarrow does not check offsets, and would read outside of the data.
        if offsets[first] < 0 or sizes.min() < 0:
            raise ValueError("the Arrow array's offsets do not rise")
        return sizes

    def take(self, order: Order) -> "ArrowColumn":
        return ArrowColumn(self._array.take(order))

    def slice(self, first: int, upper_bound: int) -> "ArrowColumn":
        return ArrowColumn(self._array.slice(first, upper_bound - first))

    def joined(self, others: Sequence["ArrowColumn"]) -> "ArrowColumn":
        import pyarrow as pa

        return ArrowColumn(pa.concat_arrays([self._array, *(other._array for other in others)]))


class FixedColumn:
    """A numpy array of uint8 with one row for each cell."""

    def __init__(self, rows: npt.NDArray[np.uint8]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def for_encoder(self) -> object:
        return self._rows

    def sizes(self) -> Sizes:
        return np.full(len(self._rows), self._rows.shape[1], np.int64)

    def take(self, order: Order) -> "FixedColumn":
        return FixedColumn(self._rows[order])

    def slice(self, first: int, upper_bound: int) -> "FixedColumn":
        return FixedColumn(self._rows[first:upper_bound])

    def joined(self, others: Sequence["FixedColumn"]) -> "FixedColumn":
        return FixedColumn(np.concatenate([self._rows, *(other._rows for other in others)]))


def bytes_column(source: object, name: str) -> BytesColumn:
    """Return the column of an argument of this name. Raises TypeError."""
    if isinstance(source, (list, tuple)):
        return ListColumn.checked(list(source), name)
    if isinstance(source, np.ndarray):
        return _numpy_column(source, name)
    array: Any = source
    if hasattr(array, "combine_chunks"):
        array = array.combine_chunks()
    if hasattr(array, "__arrow_c_array__"):
        return ArrowColumn.checked(_as_pyarrow(array), name)
    return ListColumn.checked(series_as_list(source, name), name)


def _numpy_column(source: npt.NDArray[Any], name: str) -> BytesColumn:
    if source.ndim == 1 and source.dtype.kind in "SO":
        return ListColumn.checked(source.tolist(), name)
    if source.ndim == 2 and source.dtype == np.uint8:
        if np.ma.is_masked(source):
            raise ValueError(f"{name}: bytes of a masked array are masked")
        return FixedColumn(np.array(source, order="C", copy=True))
    raise TypeError(
        f"{name}: a numpy array of dtype S or O, or a two-dimensional one of uint8, not "
        f"{source.ndim}-dimensional {source.dtype}"
    )


def _as_pyarrow(array: Any) -> Any:
    if hasattr(array, "buffers") and hasattr(array, "take"):
        return array
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError(
            f"staging an Arrow column of {type(array).__module__} needs pyarrow: "
            "run `pip install 'eoslog[arrow]'`"
        ) from error
    return pa.array(array)
