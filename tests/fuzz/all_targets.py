"""All targets by name."""

from fuzz import partition_targets  # noqa: F401 (it adds its own)
from fuzz.targets import TARGETS

__all__ = ["TARGETS"]
