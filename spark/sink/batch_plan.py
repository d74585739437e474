"""Plan of a micro-batch, as Spark wrote it down in the query's checkpoint.

Spark writes `offsets/<batch id>` once, before the batch runs, and a batch that is run again has the
same file. A checkpoint that lost the file, or is an older copy, gets another one under the same
number: at least its time differs.
"""

import hashlib
from pathlib import Path

_DIGITS = 32


def plan_of_batch(checkpoint: str | None, batch_id: int) -> str | None:
    """A text that is the same in every replay of the batch; None where this host cannot read it.

    `checkpoint` is the query's checkpoint location, a path or a URL.
    """
    if checkpoint is None or not checkpoint.startswith("/"):
        return None
    try:
        content = (Path(checkpoint) / "offsets" / str(batch_id)).read_bytes()
    except (OSError, ValueError):
        return None
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
