"""Consumer groups of a store: what it tells of them, and how one is forgotten."""

from typing import TYPE_CHECKING

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import GroupIdNotFoundError
from eoslog.groups.group_description import GroupDescription
from eoslog.groups.group_metadata import OffsetAndMetadata, check_group_id
from eoslog.staging.staged_offsets import VERSION_PARTITION

if TYPE_CHECKING:
    from eoslog.staging.staged_commit import StagedCommits
    from eoslog.store.store_files import StoreFiles


class StoreGroups:
    """Consumer groups, a part of a `Store`, which is made on top of it."""

    _files: "StoreFiles"
    _staged: "StagedCommits"

    def groups(self) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of every group that has any, or has some that are not decided yet;
        of one that has, or had, members too.

        A group with the name of an application also has the application's newest version, at
        partition 0 of `eoslog-version`. Raises CorruptRecordError.
        """
        self._check_open()
        found = self._files.group_offsets.all()
        for group, version in self._staged.versions(found).items():
            found[group][VERSION_PARTITION] = OffsetAndMetadata(version)
        return found

    def describe_group(self, name: str) -> GroupDescription:
        """A group's state, generation and members, and which partitions each of them reads.

        Raises GroupIdNotFoundError, InvalidRequestError (an empty name), CorruptRecordError.
        """
        self._check_open()
        found = self._files.group_members.describe(check_group_id(name))
        if found is None:
            raise GroupIdNotFoundError(f"there is no group {name!r}")
        return found

    def delete_group(self, name: str) -> None:
        """Forget a group with all its offsets, those of open transactions too; durable on return.

        Raises GroupIdNotFoundError, NonEmptyGroupError if consumers are subscribed with it,
        InvalidRequestError (an empty name), StoreError.
        """
        self._check_open()
        self._files.group_offsets.delete(name)

    # What the store has.

    def _check_open(self) -> None:
        raise NotImplementedError
