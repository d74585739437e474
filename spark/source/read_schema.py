"""The columns that a read gives: those of Spark's own Kafka source, with its names and types.

A schema of the user's may leave columns out, in any order: then they are neither built nor sent to
the JVM, which is worth much, as Spark does not tell Python sources which columns a query needs.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from eoslog.spark.source_options import flag

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

INCLUDE_HEADERS = "includeHeaders"
NEVER_NULL = ("topic", "partition", "offset", "timestampType")


def schema_of(options: Mapping[str, str]) -> "StructType":
    """The schema of a read where the user gives none; `headers` only with includeHeaders."""
    from pyspark.sql.types import StructType

    schema = StructType()
    for name, column_type in _column_types().items():
        if name != "headers" or flag(options, INCLUDE_HEADERS, False):
            schema = schema.add(name, column_type)
    return schema


def column_names(schema: "StructType") -> tuple[str, ...]:
    """The names of a schema's columns, in its order.

    Raises ValueError for a column that a record does not have, that has another type, or that may
    not hold null, and if there is none: Spark would take a row without columns for no row.
    """
    known = _column_types()
    if not schema.fields:
        raise ValueError(f"the schema has no columns: a record has {', '.join(known)}")
    for field in schema.fields:
        wanted = known.get(field.name)
        if wanted is None:
            raise ValueError(
                f"column {field.name!r} of the schema is unknown: a record has {', '.join(known)}"
            )
        if not _same_type(field.dataType, wanted):
            raise ValueError(
                f"column {field.name!r} is {wanted.simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it after the read"
            )
    names = tuple(schema.fieldNames())
    if len(set(names)) < len(names):
        raise ValueError(f"a column is twice in the schema: {', '.join(names)}")
    for field in schema.fields:
        fits = field.nullable or field.name in NEVER_NULL
        if not fits or field.dataType != known[field.name]:
            raise ValueError(
                f"column {field.name!r} of the schema is NOT NULL, or a part of it is, and a read "
                "may give null: leave NOT NULL out"
            )
    return names


def required_names(schema: "StructType") -> frozenset[str]:
    """The names of a schema's columns that are NOT NULL."""
    return frozenset(field.name for field in schema.fields if not field.nullable)


def _same_type(given: "DataType", wanted: "DataType") -> bool:
    # By their names: whether a field may be null makes no difference.
    return given.simpleString() == wanted.simpleString()


def _column_types() -> "dict[str, DataType]":
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    header = StructType().add("key", StringType()).add("value", BinaryType())
    return {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
        "headers": ArrayType(header),
    }
