"""Columns of the Parquet files to ingest, and what of them Spark would lose."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eoslog.spark.commands.input_files import InputFileError, InputFolder

if TYPE_CHECKING:
    import pyarrow as pa

DECIMAL_DIGITS_MAX = 38


def parquet_columns(inputs: InputFolder) -> "dict[str, pa.DataType]":
    """The top-level columns by name, each as the first file has it.

    Raises InputFileError for what is no Parquet file, a column that Spark cannot read, or would
    lose digits of, and a name that is there twice.
    """
    import pyarrow as pa
    from pyarrow import parquet

    found: dict[str, pa.DataType] = {}
    for path, name in zip(inputs.paths, inputs.names, strict=True):
        try:
            with parquet.ParquetFile(path) as file:
                schema = file.schema_arrow
                _check_columns(schema, name)
                int96 = [one.path for one in file.schema if one.physical_type == "INT96"]
            _check_int96(path, int96, name)
        except (pa.ArrowException, OSError) as error:
            raise InputFileError(f"{name}: not a sound Parquet file: {error}") from error
        for field in schema:
            found.setdefault(field.name, field.type)
    return found


def differ_in_case_alone(fields: "Mapping[str, pa.DataType]") -> bool:
    """Return True if two columns, or two fields of a struct, have names that differ in case."""
    import pyarrow as pa

    groups = [list(fields)]
    for name, kind in fields.items():
        for _, part in _parts(name, kind):
            if pa.types.is_struct(part):
                groups.append([field.name for field in part])
    return any(len({name.lower() for name in names}) < len(names) for names in groups)


def is_nanoseconds(kind: "pa.DataType | None") -> bool:
    import pyarrow as pa

    return kind is not None and bool(pa.types.is_timestamp(kind)) and kind.unit == "ns"


def field_of(kind: "pa.DataType | None", name: str) -> "pa.DataType | None":
    """The type of a struct's field; None if it is not known."""
    import pyarrow as pa

    if kind is None or not pa.types.is_struct(kind):
        return None
    return next((field.type for field in kind if field.name == name), None)


def element_of(kind: "pa.DataType | None") -> "pa.DataType | None":
    """The type of a list's elements; None if it is not known."""
    return kind.value_type if kind is not None and _is_list(kind) else None


def key_of(kind: "pa.DataType | None") -> "pa.DataType | None":
    """The type of a map's keys; None if it is not known."""
    return kind.key_type if kind is not None and _is_map(kind) else None


def item_of(kind: "pa.DataType | None") -> "pa.DataType | None":
    """The type of a map's values; None if it is not known."""
    return kind.item_type if kind is not None and _is_map(kind) else None


def _check_columns(schema: "pa.Schema", name: str) -> None:
    import pyarrow as pa

    _check_names_once(schema.names, f"{name}: the file")
    for field in schema:
        for path, kind in _parts(field.name, field.type):
            if _is_unreadable(kind):
                raise InputFileError(
                    f"{name}: column {path} is {kind}, which Spark cannot read: write it as "
                    "another type, or as a string"
                )
            if pa.types.is_struct(kind):
                _check_names_once([one.name for one in kind], f"{name}: column {path}")


def _check_names_once(names: list[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputFileError(f"{where} has {', '.join(map(repr, twice))} twice")


def _check_int96(path: Path, columns: list[str], name: str) -> None:
    """Raise InputFileError for a timestamp of 96 bits that has nanoseconds, which Spark cuts."""
    for column in columns:
        for nanoseconds, microseconds in zip(
            _times(path, column, "ns"), _times(path, column, "us"), strict=True
        ):
            # Beyond the years 1677 to 2262 both sides wrap: their difference is right all the same.
            if np.any(nanoseconds - microseconds * 1000):
                raise InputFileError(
                    f"{name}: column {column} has nanoseconds in timestamps of 96 bits, which "
                    "Spark cuts off: write them as 64 bits"
                )


def _times(path: Path, column: str, unit: str) -> "Iterator[np.ndarray[Any, np.dtype[np.int64]]]":
    from pyarrow import parquet

    with parquet.ParquetFile(path, coerce_int96_timestamp_unit=unit) as file:
        for batch in file.iter_batches(columns=[column]):
            yield np.asarray(_leaves(batch.column(0)).drop_null().view("int64"))


def _leaves(column: "pa.Array") -> "pa.Array":
    import pyarrow as pa

    while not pa.types.is_timestamp(column.type):
        if pa.types.is_struct(column.type):
            (column,) = column.flatten()
        elif _is_map(column.type):
            column = column.items if column.type.item_type else column.keys
        else:
            column = column.flatten()
    return column


def _parts(path: str, kind: "pa.DataType") -> "Iterator[tuple[str, pa.DataType]]":
    """The type and those that it is made of, each with its path."""
    import pyarrow as pa

    yield path, kind
    if pa.types.is_dictionary(kind):
        yield from _parts(path, kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _parts(f"{path}.{field.name}", field.type)
    elif _is_map(kind):
        yield from _parts(f"{path}.key", kind.key_type)
        yield from _parts(f"{path}.value", kind.item_type)
    elif _is_list(kind):
        yield from _parts(f"{path}.element", kind.value_type)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_map(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_map(kind))


def _is_unreadable(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return bool(kind.precision > DECIMAL_DIGITS_MAX)
    return bool(pa.types.is_time(kind) or pa.types.is_float16(kind))


def fault_in_parquet(path: Path, name: str) -> str | None:
    """Describe the first text that is not UTF-8, or map that has a key twice; None if there is
    none.
    """
    import pyarrow as pa
    from pyarrow import parquet

    row = 0
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            for column, cells in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    cells.validate(full=True)
                except pa.ArrowInvalid as error:
                    last = row + batch.num_rows
                    return f"{name}, column {column}, rows {row + 1} to {last}: {error}"
                if any(_is_map(kind) for _, kind in _parts(column, cells.type)):
                    for number, value in enumerate(cells.to_pylist(), row + 1):
                        if _has_a_key_twice(value, cells.type):
                            return f"{name}, column {column}, row {number}: a map has a key twice"
            row += batch.num_rows
    return None


def _has_a_key_twice(value: Any, kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if value is None:
        return False
    if _is_map(kind):
        keys = {repr(key) for key, _ in value}
        return len(keys) < len(value) or any(
            _has_a_key_twice(item, kind.item_type) for _, item in value
        )
    if pa.types.is_struct(kind):
        return any(_has_a_key_twice(value[one.name], one.type) for one in kind)
    return _is_list(kind) and any(_has_a_key_twice(one, kind.value_type) for one in value)
