"""Paths of the parts of a store below its directory."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.os_errors import as_if_in

STATE_DIRECTORY = "state"
STAGING_DIRECTORY = "staging"
MARKER_NAME = ".kafka_cleanshutdown"
UNRECOVERED_NAME = "unrecovered.json"


class PartitionSource(Protocol):
    """Brings the files of a partition into an overlay when they are asked for."""

    def bring_partition(self, where: TopicPartition, path: Path) -> None:
        """Have what the partition's directory holds at a path."""

    def bring_control(self, where: TopicPartition, path: Path) -> None:
        """Have the partition's control page at a path."""


class StorePaths:
    """The paths of one store. Kafka's own are at the top, ours below `state/` and `staging/`.

    `shown` is the directory as the user knows it: another one than `root` for an overlay, which has
    a `source`.
    """

    def __init__(
        self, root: Path, shown: Path | None = None, source: PartitionSource | None = None
    ) -> None:
        self.root = root
        self.shown = root if shown is None else shown
        self._source = source
        self.state = root / STATE_DIRECTORY
        self.staging = root / STAGING_DIRECTORY
        self.clean_marker = root / MARKER_NAME
        self.unrecovered = self.state / UNRECOVERED_NAME
        self.session = self.state / "session.json"
        self.shared = self.state / "shared"
        self.cut = self.state / "cut"
        self.controls = self.state / "control"
        self.spares = self.state / "spare"
        self.journals = self.state / "journal"
        self.kept_journals = self.state / "spare-journal"

    def as_shown(self, text: str) -> str:
        """Return a text with the paths in it as the user knows them."""
        return text.replace(str(self.root), str(self.shown))

    def errors_as_shown(self) -> AbstractContextManager[None]:
        """Return a block whose errors name paths as the user knows them."""
        return nullcontext() if self.root == self.shown else as_if_in({self.root: self.shown})

    def partition(self, where: TopicPartition) -> Path:
        """The directory with a partition's files."""
        path = self.root / str(where)
        if self._source is not None:
            self._source.bring_partition(where, path)
        return path

    def control(self, where: TopicPartition) -> Path:
        """The control page of a partition."""
        path = self.controls / str(where)
        if self._source is not None:
            self._source.bring_control(where, path)
        return path

    def spare(self, where: TopicPartition) -> Path:
        """The directory with a partition's spare segment files."""
        return self.spares / str(where)

    def cut_of(self, where: TopicPartition) -> Path:
        """The directory with what recoveries of a partition cut off."""
        return self.cut / str(where)
