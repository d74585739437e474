"""Columns of a Parquet file as JSON that has lost nothing of them.

Spark's `to_json` cuts a timestamp to milliseconds, names the key of a map by its memory address,
and replaces bytes that are not UTF-8. So what it would change is made text before:

- a timestamp is ISO 8601 with three digits of a second, or six, or nine where it has them;
- the keys of a map are texts;
- a string that is not UTF-8 fails the job.

The rest is as `to_json` has it: numbers with all their digits, NaN and Infinity as texts, bytes in
base64, dates as yyyy-mm-dd.
"""

from typing import TYPE_CHECKING, Any

from eoslog.spark.commands.parquet_files import (
    element_of,
    field_of,
    is_nanoseconds,
    item_of,
    key_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

# Five X: an offset has seconds where a zone had them, as before 1900.
_MILLISECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSXXXXX"
_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_OFFSET = "XXXXX"


def as_json_value(
    column: "Column", kind: "DataType", arrow: "pa.DataType | None", path: str
) -> "Column":
    """The column, with what `to_json` would change as text.

    `arrow` is the type that the file says, None if it is not known: nanoseconds are whole numbers
    to Spark.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import (
        ArrayType,
        LongType,
        MapType,
        StringType,
        StructType,
        TimestampNTZType,
        TimestampType,
    )

    if isinstance(kind, TimestampType):
        return _zoned(column)
    if isinstance(kind, TimestampNTZType):
        return _without_zone(column)
    if isinstance(kind, LongType) and arrow is not None and is_nanoseconds(arrow):
        return _nanoseconds_text(column, is_utc=arrow.tz is not None)
    if isinstance(kind, StringType):
        complaint = f.raise_error(f.lit(f"column {path} has a text that is not UTF-8"))
        is_text = column.isNull() | f.is_valid_utf8(column)
        return f.when(is_text, column).otherwise(complaint.cast("string"))
    if isinstance(kind, StructType):
        fields = [
            as_json_value(
                column.getField(field.name),
                field.dataType,
                field_of(arrow, field.name),
                f"{path}.{field.name}",
            ).alias(field.name)
            for field in kind.fields
        ]
        return f.when(column.isNotNull(), f.struct(*fields))
    if isinstance(kind, ArrayType):
        element, element_path = kind.elementType, f"{path}.element"
        inner = element_of(arrow)
        return f.transform(column, lambda one: as_json_value(one, element, inner, element_path))
    if isinstance(kind, MapType):
        return _map(column, kind, arrow, path)
    return column


def _map(column: "Column", kind: Any, arrow: "pa.DataType | None", path: str) -> "Column":
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, StringType

    def key_text(key: "Column") -> "Column":
        if isinstance(kind.keyType, BinaryType):
            return f.base64(key)
        found = as_json_value(key, kind.keyType, key_of(arrow), f"{path}.key")
        return found if isinstance(kind.keyType, StringType) else _key_text(found, kind.keyType)

    values = f.transform_values(
        column, lambda _, one: as_json_value(one, kind.valueType, item_of(arrow), f"{path}.value")
    )
    return f.transform_keys(values, lambda key, _: key_text(key))


def _key_text(key: "Column", kind: "DataType") -> "Column":
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StructType

    return f.to_json(key) if isinstance(kind, (ArrayType, StructType)) else key.cast("string")


def _zoned(column: "Column") -> "Column":
    """A timestamp of the session's time zone, with the digits it needs."""
    from pyspark.sql import functions as f

    fine = f.concat(f.date_format(column, _MICROSECONDS), f.date_format(column, _OFFSET))
    coarse = f.date_format(column, _MILLISECONDS)
    return f.when(f.unix_micros(column) % 1000 == 0, coarse).otherwise(fine)


def _without_zone(column: "Column", digits_min: int = 3) -> "Column":
    """A timestamp without a zone: its text, which has no zeros at the end, with three or six."""
    from pyspark.sql import functions as f

    parts = f.split(column.cast("string"), r"[ .]")
    fraction = f.coalesce(f.get(parts, 2), f.lit(""))
    six = f.rpad(fraction, 6, "0")
    digits = six
    if digits_min == 3:
        digits = f.when(f.length(fraction) > 3, six).otherwise(f.left(six, f.lit(3)))
    return f.concat(f.get(parts, 0), f.lit("T"), f.get(parts, 1), f.lit("."), digits)


def _nanoseconds_text(column: "Column", is_utc: bool) -> "Column":
    """Return an integer of nanoseconds as a timestamp with three, six or nine digits."""
    from pyspark.sql import functions as f

    digits = f.pmod(column, f.lit(1000))
    micros = f.call_function("div", column - digits, f.lit(1000))
    tail = f.lpad(digits.cast("string"), 3, "0")
    if is_utc:
        moment = f.timestamp_micros(micros)
        fine = f.concat(f.date_format(moment, _MICROSECONDS), tail, f.date_format(moment, _OFFSET))
        return f.when(digits == 0, _zoned(moment)).otherwise(fine)
    seconds = (micros.cast("decimal(20,0)") / 1_000_000).cast("decimal(18,6)")
    since = f.make_dt_interval(secs=seconds)
    local = f.lit("1970-01-01 00:00:00").cast("timestamp_ntz") + since
    fine = f.concat(_without_zone(local, digits_min=6), tail)
    return f.when(digits == 0, _without_zone(local)).otherwise(fine)
