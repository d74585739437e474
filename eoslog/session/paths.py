"""Paths of the parts of a store below its directory."""

from pathlib import Path

from eoslog.common.topic_partition import TopicPartition

STATE_DIRECTORY = "state"
STAGING_DIRECTORY = "staging"
MARKER_NAME = ".kafka_cleanshutdown"
UNRECOVERED_NAME = "unrecovered.json"


class StorePaths:
    """The paths of one store. Kafka's own are at the top, ours below `state/` and `staging/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
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

    def partition(self, where: TopicPartition) -> Path:
        """The directory with a partition's files."""
        return self.root / str(where)

    def control(self, where: TopicPartition) -> Path:
        """The control page of a partition."""
        return self.controls / str(where)

    def spare(self, where: TopicPartition) -> Path:
        """The directory with a partition's spare segment files."""
        return self.spares / str(where)

    def cut_of(self, where: TopicPartition) -> Path:
        """The directory with what recoveries of a partition cut off."""
        return self.cut / str(where)
