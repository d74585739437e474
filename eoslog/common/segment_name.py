"""Files of a segment are named by the offset it begins with."""

from pathlib import Path


def base_offset_of(path: Path) -> int:
    """The offset in a file's name; ValueError if it has none."""
    digits = path.name.partition(".")[0]
    if not digits.isdigit():
        raise ValueError(f"{path}: the name does not begin with an offset")
    return int(digits)
