"""Progress of an import of a file: an offset of a group, committed with the records.

The import is one transactional producer and one group, both of the same name, made of the topic and
of the file's name. Each transaction holds records of the file and the position after them, so that
both are there or neither is. `init_transactions` comes before the position is read: what an earlier
import of the name left is ended then, and it writes nothing more.
"""

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import InvalidRequestError, StoreError
from eoslog.groups.metadata import OffsetAndMetadata
from eoslog.store.store import Store

# Of a transactional id; the rest of it is the file's name.
_ID_BYTES_MAX = 480


@dataclass(frozen=True)
class FileProgress:
    """Part of a file that is in the topic: its first `position` bytes, or of Parquet rows.

    `crc` is the CRC-32C of these bytes, of Parquet that of the whole file, which has `size` bytes.
    `line` is the number of the next line. `open_line`: the last line was taken without its end.
    """

    format: str
    position: int = 0
    crc: int = 0
    line: int = 1
    records: int = 0
    size: int = 0
    open_line: bool = False


def import_id(topic: str, name: str) -> str:
    """Return the transactional id, and group, of the imports of a name into a topic.

    Raises InvalidRequestError for a name that is too long or no text.
    """
    found = f"import:{topic}:{name}"
    try:
        size_bytes = len(found.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"name {name!r} is no UTF-8: give the file another") from error
    if not name:
        raise InvalidRequestError("the name of an import must not be empty")
    if size_bytes > _ID_BYTES_MAX:
        raise InvalidRequestError(
            f"topic and name of an import must have at most {_ID_BYTES_MAX - 8} bytes, got "
            f"{size_bytes - 8}: give the file a shorter name"
        )
    return found


class ImportTransactions:
    """The transactions of one import. Its block begins with I1; its end aborts what is open."""

    def __init__(self, store: Store, topic: str, name: str) -> None:
        self._id = import_id(topic, name)
        self._where = TopicPartition(topic, 0)
        self._store = store
        self.producer = store.producer(transactional_id=self._id)

    def __enter__(self) -> Self:
        with ExitStack() as failing:
            failing.push(self.producer.__exit__)
            self.producer.init_transactions()
            with self._store.consumer(self._id) as consumer:
                self._committed = consumer.committed_metadata(self._where)
            failing.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.producer.__exit__(kind, error, trace)

    def progress(self, file: str, file_format: str) -> FileProgress:
        """Return how far the imports of the name came.

        Raises InvalidRequestError for an import in another format, StoreError for an offset that
        no import committed.
        """
        if self._committed is None:
            return FileProgress(file_format)
        try:
            found = FileProgress(
                **json.loads(self._committed.metadata), position=self._committed.offset
            )
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"group {self._id!r} has an offset that no import committed: delete the group to "
                "import the file from its beginning"
            ) from error
        if found.format != file_format:
            raise InvalidRequestError(
                f"{file}: an earlier import took it as {found.format}, this one as {file_format}: "
                "nothing was imported; give the format of then, or another name"
            )
        return found

    def commit(self, progress: FileProgress) -> None:
        """Commit the open transaction, with how far the import has come."""
        fields = asdict(progress)
        position = fields.pop("position")
        self.producer.send_offsets_to_transaction(
            {self._where: OffsetAndMetadata(position, json.dumps(fields))}, self._id
        )
        self.producer.commit_transaction()
