"""`partition.metadata`: the file that ties a partition's directory to its topic's id."""

from pathlib import Path

from eoslog.common.kafka_uuid import id_bytes
from eoslog.errors import CorruptRecordError
from eoslog.fs.atomic_file import read_if_there, write_atomically

FILE_NAME = "partition.metadata"


def write_partition_metadata(directory: Path, topic_id: str) -> None:
    """Write the file, durably; before any data, so that no data is ever without its topic."""
    id_bytes(topic_id)
    content = f"version: 0\ntopic_id: {topic_id}"  # Kafka's has no final newline either.
    write_atomically(directory / FILE_NAME, content.encode())


def read_partition_metadata(directory: Path) -> str | None:
    """The topic's id, or None if there is no such file; CorruptRecordError if it is not one."""
    path = directory / FILE_NAME
    content = read_if_there(path)
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecordError(str(path), error.start, "not UTF-8 text") from error
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if fields.get("version") != "0":
        raise CorruptRecordError(str(path), 0, f"version {fields.get('version')!r}, expected '0'")
    topic_id = fields.get("topic_id", "")
    try:
        id_bytes(topic_id)
    except ValueError as error:
        raise CorruptRecordError(str(path), 0, str(error)) from error
    return topic_id
