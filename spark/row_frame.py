"""Files as a DataFrame of records: one row of input, one key and one value.

Nothing is guessed and nothing is dropped. A CSV row becomes a JSON object of its texts; a line of
JSON or text stays as it is; a Parquet row becomes JSON with its nulls. A row that does not fit its
header, and a line that is not JSON, fail the job instead of being turned into nulls.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eoslog.spark.input_files import InputFileError, InputFolder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DEFAULT_KEY_SEPARATOR = ":"
_NAMES = re.compile(r"\w+(?:\s*,\s*\w+)*")


@dataclass(frozen=True)
class RowFormat:
    """How the rows of files become records.

    `file_format` is csv, jsonl, parquet or text, by default what the files' names say. `key` is a
    list of columns (of JSON: of top-level fields) with commas between, joined by `key_separator`,
    where a null counts as empty text and a key of nulls alone is null; or any Spark SQL expression
    over the columns, over `value` for JSON lines and text. `multiline` allows line ends inside the
    quotes of a CSV file; one task then reads each file.
    """

    file_format: str | None = None
    key: str | None = None
    key_separator: str = DEFAULT_KEY_SEPARATOR
    multiline: bool = False


def row_frame(spark: "SparkSession", inputs: InputFolder, row_format: RowFormat) -> "DataFrame":
    """The rows of the inputs, as columns `key` (if one is asked for) and `value`."""
    if inputs.file_format == "csv":
        frame = _csv(spark, inputs, row_format.multiline)
    elif inputs.file_format == "parquet":
        # Without mergeSchema a column that the first file does not have would be dropped.
        frame = spark.read.option("mergeSchema", "true").parquet(*_paths(inputs))
    else:
        return _lines(spark, inputs, row_format)
    if not frame.columns:
        raise InputFileError("the files have no columns")
    return _rows_as_json(frame, row_format)


def _paths(inputs: InputFolder) -> list[str]:
    # Not as_uri(): Spark takes %20 for three characters of a name, and a space for a space.
    return [f"file://{path}" for path in inputs.paths]


def _csv(spark: "SparkSession", inputs: InputFolder, multiline: bool) -> "DataFrame":
    return spark.read.csv(
        _paths(inputs),
        header=True,
        # Every file's header is compared with the first one's, not ignored.
        enforceSchema=False,
        mode="FAILFAST",
        # A quote inside quotes is doubled, as RFC 4180 has it; a backslash is only a backslash.
        quote='"',
        escape='"',
        multiLine=multiline,
    )


def _rows_as_json(frame: "DataFrame", row_format: RowFormat) -> "DataFrame":
    from pyspark.sql import functions

    value = functions.to_json(functions.struct("*"), {"ignoreNullFields": "false"})
    if row_format.key is None:
        return frame.select(value.alias("value"))
    names = _names(row_format.key)
    if names is not None:
        unknown = [name for name in names if name not in frame.columns]
        if unknown:
            raise InputFileError(
                f"no column {', '.join(unknown)} for the key; there are {', '.join(frame.columns)}"
            )
        key_column = _joined([frame[f"`{name}`"] for name in names], row_format.key_separator)
    else:
        key_column = functions.expr(row_format.key).cast("string")
    return frame.select(key_column.alias("key"), value.alias("value"))


def _lines(spark: "SparkSession", inputs: InputFolder, row_format: RowFormat) -> "DataFrame":
    from pyspark.sql import functions

    frame = spark.read.text(_paths(inputs))
    is_json = inputs.file_format == "jsonl"
    if is_json:
        line = functions.col("value")
        complaint = functions.raise_error(functions.lit("a line is not JSON")).cast("string")
        frame = frame.where(functions.trim(line) != "").select(
            functions.when(functions.try_parse_json(line).isNull(), complaint)
            .otherwise(line)
            .alias("value")
        )
    if row_format.key is None:
        return frame
    names = _names(row_format.key) if is_json else None
    if names is not None:
        fields = [functions.get_json_object("value", f"$['{name}']") for name in names]
        key_column = _joined(fields, row_format.key_separator)
    else:
        key_column = functions.expr(row_format.key).cast("string")
    return frame.select(key_column.alias("key"), functions.col("value"))


def _names(key: str) -> list[str] | None:
    """The columns of a key that is nothing but a list of names."""
    if _NAMES.fullmatch(key.strip()) is None:
        return None
    return [name.strip() for name in key.split(",")]


def _joined(columns: "list[Column]", separator: str) -> "Column":
    from pyspark.sql import functions

    texts = [functions.coalesce(column.cast("string"), functions.lit("")) for column in columns]
    any_value = functions.coalesce(*(column.cast("string") for column in columns)).isNotNull()
    return functions.when(any_value, functions.concat_ws(separator, *texts))
