"""Files as a DataFrame of records: one row of input, one key and one value.

Nothing is guessed and nothing is dropped. A CSV row becomes a JSON object of its texts; a line of
JSON or text stays as it is; a Parquet row becomes JSON with its nulls. A row that does not fit its
header, a line that is not JSON, and a text that is not UTF-8 fail the job instead of being changed.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from eoslog.spark.commands.csv_files import (
    DEFAULT_DELIMITER,
    check_delimiter,
    csv_as_parquet,
    csv_header,
)
from eoslog.spark.commands.input_files import InputFileError, InputFolder
from eoslog.spark.commands.json_columns import as_json_value
from eoslog.spark.commands.json_lines import JsonLines, fault_in_json
from eoslog.spark.commands.parquet_files import (
    differ_in_case_alone,
    fault_in_parquet,
    is_nanoseconds,
    parquet_columns,
)
from eoslog.spark.commands.text_faults import check_no_utf_16, fault_in_utf8

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

DEFAULT_KEY_SEPARATOR = ":"
# What `row_frame` sets in the session, for as long as the frame is used.
SESSION_SETTINGS = (
    "spark.sql.caseSensitive",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.legacy.parquet.nanosAsLong",
)
_NAMES = re.compile(r"\w+(?:\s*,\s*\w+)*")


@dataclass(frozen=True)
class RowFormat:
    """Format of rows: how those of files become records.

    `file_format` is csv, jsonl, parquet or text, by default what the files' names say. `key` is a
    list of columns (of JSON: of top-level fields) with commas between, joined by `key_separator`,
    where a null counts as empty text and a key of nulls alone is null; or any Spark SQL expression
    over the columns, over `value` for JSON lines and text. `multiline` allows line ends inside the
    quotes of a CSV file, and `delimiter` is what its cells have between them.
    """

    file_format: str | None = None
    key: str | None = None
    key_separator: str = DEFAULT_KEY_SEPARATOR
    multiline: bool = False
    delimiter: str = DEFAULT_DELIMITER

    def __post_init__(self) -> None:
        check_delimiter(self.delimiter)

    def digest(self, file_format: str) -> str:
        """A text that is the same for row formats that make the same records of sound files."""
        names = _json_fields(self.key)
        parts: list[object] = [file_format, names or self.key]
        if names is None or len(names) > 1:
            parts.append(self.key_separator)
        if file_format == "csv":
            parts.append(check_delimiter(self.delimiter))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def row_frame(
    spark: "SparkSession",
    inputs: InputFolder,
    row_format: RowFormat,
    split_bytes: int | None = None,
) -> "DataFrame":
    """The rows of the inputs, as columns `key` (if one is asked for) and `value`.

    A task reads `split_bytes` of the inputs. What Spark needs to read them is set in the session:
    the caller puts `SESSION_SETTINGS` back once the frame was used. Raises InputFileError.
    """
    if split_bytes is not None:
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(split_bytes))
    if inputs.file_format in ("jsonl", "text"):
        return _lines(spark, inputs, row_format)
    if inputs.file_format == "csv":
        read = _csv_as_parquet(inputs, row_format)
        if split_bytes is not None:
            # Parquet is smaller: the tasks are as many as the CSV files would make.
            share = read.size_bytes / max(1, inputs.size_bytes)
            task_bytes = max(1, int(split_bytes * share))
            spark.conf.set("spark.sql.files.maxPartitionBytes", str(task_bytes))
        return _rows_as_json(spark, read, row_format)
    return _rows_as_json(spark, inputs, row_format)


def fault_of(inputs: InputFolder, row_format: RowFormat) -> str | None:
    """Find what no record can be made of in the inputs, and its place: for a job that failed.

    The files are read once more. None if nothing is found. Raises InputFileError.
    """
    fields = _json_fields(row_format.key) or ()
    for path, name in zip(inputs.paths, inputs.names, strict=True):
        fault = None
        if inputs.file_format == "parquet":
            fault = fault_in_parquet(path, name)
        elif inputs.file_format != "csv":
            fault = fault_in_utf8(path, name)
        if fault is None and inputs.file_format == "jsonl":
            fault = fault_in_json(path, name, fields, row_format.key_separator)
        if fault is not None:
            return fault
    return None


def check_key_columns(inputs: InputFolder, row_format: RowFormat) -> None:
    """Raise InputFileError for a key of columns that the first file does not have."""
    if row_format.key is None:
        return
    if inputs.file_format == "csv":
        columns = csv_header(inputs.paths[0], inputs.names[0], row_format.delimiter)
    elif inputs.file_format == "parquet":
        columns = list(parquet_columns(inputs))
    else:
        return
    _key_columns(row_format.key, columns)


def _paths(inputs: InputFolder) -> list[str]:
    # Not as_uri(): Spark takes %20 for three characters of a name, and a space for a space.
    return [f"file://{path}" for path in inputs.paths]


def _csv_as_parquet(inputs: InputFolder, row_format: RowFormat) -> InputFolder:
    """Write the same rows as Parquet files of texts, in the same folder."""
    delimiter = check_delimiter(row_format.delimiter)
    paths: list[Path] = []
    names: list[str] = []
    first: list[str] = []
    for path, name in zip(inputs.paths, inputs.names, strict=True):
        target = path.with_name(f"{path.name}.parquet")
        columns = csv_as_parquet(
            path, name, target, delimiter=delimiter, multiline=row_format.multiline
        )
        if not columns:
            continue
        if first and columns != first:
            raise InputFileError(
                f"{name}, line 1: the header is {', '.join(columns)}, and that of {names[0]} is "
                f"{', '.join(first)}"
            )
        first = columns
        paths.append(target)
        names.append(name)
    if not first:
        raise InputFileError(f"the files have no columns: {', '.join(inputs.names)}")
    size_bytes = sum(path.stat().st_size for path in paths)
    return replace(inputs, paths=paths, names=names, size_bytes=size_bytes)


def _rows_as_json(spark: "SparkSession", inputs: InputFolder, row_format: RowFormat) -> "DataFrame":
    from pyspark.sql import functions

    fields = parquet_columns(inputs)
    if differ_in_case_alone(fields):
        spark.conf.set("spark.sql.caseSensitive", "true")
    # Else Spark refuses timestamps in nanoseconds.
    spark.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
    # Without mergeSchema a column that the first file does not have would be dropped.
    frame = spark.read.option("mergeSchema", "true").parquet(*_paths(inputs))
    if not frame.columns:
        raise InputFileError("the files have no columns")
    row = functions.col("row")
    cells = {}
    for field in frame.schema.fields:
        cell = row.getField(field.name)
        if inputs.file_format != "csv":
            cell = as_json_value(cell, field.dataType, fields.get(field.name), field.name)
        cells[field.name] = cell
    texts = [cell.alias(name) for name, cell in cells.items()]
    value = functions.to_json(functions.struct(*texts), {"ignoreNullFields": "false"})
    rows = functions.struct("*").alias("row")
    if row_format.key is None:
        return frame.select(rows).select(value.alias("value"))
    names = _key_columns(row_format.key, frame.columns)
    if names is None:
        key_column = functions.expr(row_format.key).cast("string")
        return frame.select(key_column.alias("key"), rows).select("key", value.alias("value"))
    key_column = _joined([_key_cell(row, name, fields) for name in names], row_format.key_separator)
    return frame.select(rows).select(key_column.alias("key"), value.alias("value"))


def _key_cell(row: "Column", name: str, fields: "Mapping[str, pa.DataType]") -> "Column":
    from pyspark.sql.types import LongType

    cell, kind = row.getField(name), fields.get(name)
    return as_json_value(cell, LongType(), kind, name) if is_nanoseconds(kind) else cell


def _key_columns(key: str, columns: list[str]) -> list[str] | None:
    """The columns that a key names; None if it is an expression. A name may hold anything."""
    if key in columns:
        return [key]
    names = [name.strip() for name in key.split(",")]
    unknown = [name for name in names if name not in columns]
    if unknown and _NAMES.fullmatch(key.strip()):
        raise InputFileError(
            f"no column {', '.join(unknown)} for the key; there are {', '.join(columns)}"
        )
    return None if unknown else names


def _json_fields(key: str | None) -> tuple[str, ...] | None:
    """The top-level fields that a key names; None if there is no key, or an expression."""
    if key is None or _NAMES.fullmatch(key.strip()) is None:
        return None
    return tuple(name.strip() for name in key.split(","))


def _lines(spark: "SparkSession", inputs: InputFolder, row_format: RowFormat) -> "DataFrame":
    from pyspark.sql import functions

    for path, name in zip(inputs.paths, inputs.names, strict=True):
        check_no_utf_16(path, name)
    # Else Spark would end a line at each carriage return. That of a line's end is in its last byte.
    line = functions.col("value").cast("binary")
    shorter = functions.substring(line, 1, functions.octet_length(line) - 1)
    line = functions.when(functions.endswith(line, functions.lit(b"\r")), shorter).otherwise(line)
    frame = spark.read.option("lineSep", "\n").text(_paths(inputs))
    key = row_format.key
    if inputs.file_format == "jsonl":
        fields = _json_fields(key)
        frame = frame.select(line.alias("value")).mapInArrow(
            JsonLines(fields or (), row_format.key_separator), "key string, value string"
        )
        if fields is not None:
            return frame
        frame = frame.select("value")
    else:
        # A key is made of text. Without one the bytes of a line are what they are.
        text = line.cast("string")
        if key is not None:
            complaint = functions.raise_error(functions.lit("a line is not UTF-8")).cast("string")
            text = functions.when(functions.is_valid_utf8(text), text).otherwise(complaint)
        frame = frame.select(text.alias("value"))
    if key is None:
        return frame
    return frame.select(functions.expr(key).cast("string").alias("key"), functions.col("value"))


def _joined(columns: "list[Column]", separator: str) -> "Column":
    from pyspark.sql import functions

    texts = [functions.coalesce(column.cast("string"), functions.lit("")) for column in columns]
    any_value = functions.coalesce(*(column.cast("string") for column in columns)).isNotNull()
    return functions.when(any_value, functions.concat_ws(separator, *texts))
