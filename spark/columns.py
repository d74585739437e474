"""The columns of a row that is a Kafka record, as Spark's own Kafka sink names them."""

from collections.abc import Iterable

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "headers", "timestamp")
# Columns of Spark's Kafka source that say where a record was: a sink has no use for them.
SOURCE_ONLY_COLUMNS = ("offset", "timestampType")


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
            "to_json(struct('*')) makes one of a whole row"
        )
    unknown = found.difference(KAFKA_COLUMNS, SOURCE_ONLY_COLUMNS)
    if unknown:
        raise ValueError(
            f"unknown columns {', '.join(sorted(unknown))}: a record has {', '.join(KAFKA_COLUMNS)}"
        )
