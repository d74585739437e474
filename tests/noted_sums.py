"""What a clean close notes of the files that have no checksum of their own."""

import json
from pathlib import Path

from eoslog.session.paths import MARKER_NAME


def forget_sums(store_path: Path) -> None:
    """As if what those files hold now had been there when the store was closed."""
    marker = store_path / MARKER_NAME
    document = json.loads(marker.read_text())
    del document["eoslog.sums"]
    marker.write_text(json.dumps(document))
