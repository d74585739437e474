"""JSON that was read from a file, a record or a message: it may say anything."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eoslog.errors import CorruptRecordError


def loads_json(text: str | bytes, *, names_once: bool = False) -> Any:
    """Parse the text. Raises ValueError if it is not JSON, or is nested too deep to be one of ours;
    with `names_once`, also if an object has a name twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_names_once if names_once else None)
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def _names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


@contextmanager
def fields_read_of(what: str) -> Iterator[None]:
    """A block that takes apart what JSON said: a field that is missing, or is of another kind than
    it should be, is a CorruptRecordError.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CorruptRecordError("", 0, f"{what} cannot be read: {error!r}") from error


def check_kinds(kind: type, *values: object) -> None:
    """Raise TypeError unless all values are of a kind; True and False are no numbers here."""
    for value in values:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"{value!r:.80} is not {kind.__name__}")
