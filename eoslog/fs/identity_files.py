"""Kafka's files that say what a directory is: `meta.properties`, with the ids of a log directory
and the version of the store in it, and `partition.metadata`, with the id of a partition's topic.

An id has 128 bits, written as Kafka does: 22 characters of URL-safe base64, without padding.
"""

import base64
import binascii
import os
import time
from pathlib import Path
from typing import NamedTuple

from eoslog.errors import CorruptRecordError, NotAStoreError, StoreVersionError
from eoslog.fs.atomic_file import read_if_there, write_atomically

META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
KAFKA_VERSION = 1
STORE_VERSION = 1
STORE_VERSION_KEY = "eoslog.store.version"
_IMPORTED_KEY = "eoslog.imported"
ID_BYTES = 16
_RESERVED = (bytes(ID_BYTES), bytes(ID_BYTES - 1) + b"\x01")


def new_id() -> str:
    """A random id that Kafka would choose too: none of its reserved ones, no leading dash."""
    while True:
        raw = bytearray(os.urandom(ID_BYTES))
        raw[6] = raw[6] & 0x0F | 0x40  # Version 4 ...
        raw[8] = raw[8] & 0x3F | 0x80  # ... of RFC 9562's first variant.
        text = id_text(bytes(raw))
        if bytes(raw) not in _RESERVED and not text.startswith("-"):
            return text


def id_text(raw: bytes) -> str:
    """The text of an id of 16 bytes."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def id_bytes(text: str) -> bytes:
    """The 16 bytes of an id; ValueError if the text is none, or the reserved id of all zeros."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not an id") from error
    if len(raw) != ID_BYTES or len(text) != 22:
        raise ValueError(f"{text!r} is not an id of {ID_BYTES} bytes")
    if raw == bytes(ID_BYTES):
        raise ValueError("the id of all zeros is reserved")
    return raw


class MetaProperties(NamedTuple):
    """Identity of the store: two ids, and `node_id`, which is 0 for a store.

    `imported`: the store began with logs that others wrote; what is older is not known.
    """

    cluster_id: str
    directory_id: str
    node_id: int = 0
    store_version: int = STORE_VERSION
    imported: bool = False

    @classmethod
    def new(cls) -> "MetaProperties":
        return cls(cluster_id=new_id(), directory_id=new_id())


def write_meta_properties(store_path: Path, properties: MetaProperties) -> None:
    """Write the file, durably: from then on the directory is a store."""
    moment = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime())
    lines = [
        "#",
        f"#{moment}",
        f"cluster.id={properties.cluster_id}",
        f"directory.id={properties.directory_id}",
        f"{STORE_VERSION_KEY}={properties.store_version}",
        f"node.id={properties.node_id}",
        f"version={KAFKA_VERSION}",
    ]
    if properties.imported:
        lines.append(f"{_IMPORTED_KEY}=true")
    write_atomically(store_path / META_PROPERTIES, ("\n".join(lines) + "\n").encode())


def read_properties(path: Path) -> dict[str, str] | None:
    """The fields of a file of properties; None if there is no file. Raises UnicodeDecodeError."""
    content = read_if_there(path)
    if content is None:
        return None
    fields = {}
    for line in content.decode().splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", "!")):
            fields[name.strip()] = value.strip()
    return fields


def read_meta_properties(store_path: Path) -> MetaProperties:
    """The store's identity. Raises NotAStoreError or StoreVersionError."""
    path = store_path / META_PROPERTIES
    try:
        fields = read_properties(path)
    except UnicodeDecodeError as error:
        raise NotAStoreError(f"{store_path} is not a store: {path} is no text") from error
    if fields is None:
        raise NotAStoreError(f"{store_path} is not a store: it has no {META_PROPERTIES}")
    if STORE_VERSION_KEY not in fields:
        raise NotAStoreError(f"{store_path} is not a store: {path} names no {STORE_VERSION_KEY}")
    try:
        store_version = int(fields[STORE_VERSION_KEY])
        node_id = int(fields.get("node.id", "0"))
    except ValueError as error:
        raise NotAStoreError(f"{path}: {error}") from error
    if store_version > STORE_VERSION:
        raise StoreVersionError(
            f"{path}: store version {store_version}; "
            f"this eoslog reads versions up to {STORE_VERSION}"
        )
    if store_version < 1:
        raise NotAStoreError(f"{path}: store version {store_version}")
    return MetaProperties(
        cluster_id=fields.get("cluster.id", ""),
        directory_id=fields.get("directory.id", ""),
        node_id=node_id,
        store_version=store_version,
        imported=fields.get(_IMPORTED_KEY) == "true",
    )


def write_partition_metadata(directory: Path, topic_id: str, *, sync: bool = True) -> None:
    """Write the file, durably if `sync` is true; before any data, so that no data is ever without
    its topic.
    """
    id_bytes(topic_id)
    content = f"version: 0\ntopic_id: {topic_id}"  # Kafka's has no final newline either.
    write_atomically(directory / PARTITION_METADATA, content.encode(), sync=sync)


def read_partition_metadata(directory: Path) -> str | None:
    """The topic's id, or None if there is no such file; CorruptRecordError if it is not one."""
    path = directory / PARTITION_METADATA
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
