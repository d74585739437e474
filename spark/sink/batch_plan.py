"""Plan of a micro-batch, as Spark wrote it down in the query's checkpoint.

Spark writes `offsets/<batch id>` once, before the batch runs, and a batch that is run again has the
same file. A checkpoint that lost the file, or is an older copy, gets another one under the same
number: at least its time differs.
"""

import hashlib
import os.path
from pathlib import Path

from eoslog.spark.source_options import as_path

_DIGITS = 32


def plan_of_batch(place: str | None, batch_id: int) -> str | None:
    """A text that is the same in every replay of the batch; None where this host cannot read it.

    `place` is where the query's checkpoint is, by `place_of`.
    """
    if place is None or not place.startswith("/"):
        return None
    try:
        content = (Path(place) / "offsets" / str(batch_id)).read_bytes()
    except (OSError, ValueError):
        return None
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def place_of(location: str | None) -> str | None:
    """A checkpoint's location, in one form for a path and its `file:` URL.

    Spark decodes nothing: `%`, `?` and `#` are characters of a name.
    """
    if location is None:
        return None
    scheme, colon, _ = location.partition(":")
    if colon and scheme != "file" and "/" not in scheme:
        return location.rstrip("/")
    # Not resolved: a link in it may lead elsewhere one day.
    return os.path.abspath(as_path(location))  # noqa: PTH100
