"""The columns of a row that is a Kafka record, as Spark's own Kafka sink names them."""

from collections.abc import Iterable, Mapping

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "headers", "timestamp")
# Columns of Spark's Kafka source that say where a record was: a sink has no use for them.
SOURCE_ONLY_COLUMNS = ("offset", "timestampType")

# What Spark calls the types that a column may have; those of its Kafka sink, and void: all nulls.
INTEGERS = ("int", "bigint", "smallint", "tinyint", "void")
COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("binary", "string", "void"),
    "value": ("binary", "string", "void"),
    "topic": ("string",),
    "partition": INTEGERS,
    "timestamp": ("timestamp", *INTEGERS),
    "headers": (
        "array<struct<key:string,value:binary>>",
        "array<struct<key:string,value:string>>",
        "void",
    ),
}


def check_columns(names: Iterable[str]) -> None:
    """Raise ValueError if there is no value column, or one that is not known: typos lose data."""
    names = list(names)
    found = set(names)
    if len(found) < len(names):
        twice = sorted(name for name in found if names.count(name) > 1)
        raise ValueError(f"column {', '.join(twice)} is there twice")
    if "value" not in found:
        raise ValueError(
            f"no column 'value' among {', '.join(sorted(found)) or 'none'}; "
            'selectExpr("to_json(struct(*)) AS value") makes one of a whole row'
        )
    unknown = found.difference(KAFKA_COLUMNS, SOURCE_ONLY_COLUMNS)
    if unknown:
        raise ValueError(
            f"unknown columns {', '.join(sorted(unknown))}: "
            f"a record has {', '.join(KAFKA_COLUMNS)}; "
            'selectExpr("to_json(struct(*)) AS value") keeps them'
        )


def check_column_types(types: Mapping[str, str], topic: str | None) -> None:
    """Raise ValueError or TypeError unless columns of these types, by name, make records.

    Types are as Spark prints them. With a `topic` for all rows a column of that name is not used.
    """
    check_columns(types)
    if topic is None and "topic" not in types:
        raise ValueError("no topic: name one, or give the DataFrame a column 'topic'")
    for name, kind in types.items():
        if name not in COLUMN_TYPES or (name == "topic" and topic is not None):
            continue
        if kind not in COLUMN_TYPES[name]:
            expected = " or ".join(COLUMN_TYPES[name])
            hint = f"; to_json({name}) or CAST({name} AS string) makes one"
            is_text = "string" in COLUMN_TYPES[name]
            raise TypeError(
                f"column {name} must be {expected}, got {kind}{hint if is_text else ''}"
            )
