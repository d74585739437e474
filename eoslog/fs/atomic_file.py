"""Small files that are replaced as a whole: a reader finds the old content or the new, never a mix.

The new content goes to `<name>.tmp`, is synced, takes the name by a rename, and the directory is
synced: after a power cut the file is the old one or the new one. Without the first sync a rename
may reach the disk before the bytes do.

`<name>.tmp` is written over, not made again: where room was reserved for it, it has its blocks
already, and a full disk does not keep the file from being replaced.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from eoslog.bindings.file_descriptor import (
    FileDescriptor,
    open_regular,
    sync_descriptor,
    sync_path,
)
from eoslog.errors import CorruptRecordError, StoreError, StoreFailedError
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.overlay_directories import is_in_overlay
from eoslog.fs.private_files import FILE_MODE

TEMPORARY_SUFFIX = ".tmp"
# The list of a million topics is shorter.
SMALL_BYTES_MAX = 1 << 28


def write_atomically(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Replace the file at `path`, durably when `sync` is true.

    Raises StoreFullError, StoreReadOnlyError or StoreFailedError; the old content is then in place.
    Only where the name could not be synced, a StoreFailedError, the new one is, until a power cut.
    """
    write_each_atomically({path: content}, sync=sync)


def write_each_atomically(contents: Mapping[Path, bytes], *, sync: bool = True) -> None:
    """Replace files of one directory, each as `write_atomically` does, and sync the directory once.

    After a power cut in between some are the new ones and some the old, in any mixture.
    """
    for path, content in contents.items():
        write_aside(path, content, sync=sync)
    for path in contents:
        put_in_place(path)
    if sync:
        for directory in {path.parent for path in contents}:
            try:
                sync_directory(directory)
            except StoreError as error:
                names = ", ".join(str(path) for path in contents)
                raise StoreFailedError(f"{names}: replaced, and not synced: {error}") from error


def _aside(path: Path) -> Path:
    return path.with_name(path.name + TEMPORARY_SUFFIX)


def reserve_room(path: Path, size_bytes: int) -> None:
    """Have the next `write_atomically` of a file find room for so many bytes, however full the disk
    is by then. It does nothing if there is no room now. The caller keeps others from writing.
    """
    with suppress(OSError), _opened_aside(path) as descriptor:
        os.posix_fallocate(descriptor, 0, size_bytes)


def give_room_back(path: Path) -> None:
    """Give back the room that was reserved for a file."""
    with named_os_errors(f"removing {_aside(path)}"):
        _aside(path).unlink(missing_ok=True)


def _opened_aside(path: Path) -> FileDescriptor:
    aside = _aside(path)
    with suppress(FileNotFoundError):
        if aside.samefile(path):
            aside.unlink()  # A power cut undid one half of a rename: the file has both names.
    return FileDescriptor(aside, os.O_WRONLY | os.O_CREAT, FILE_MODE)


def write_aside(path: Path, content: bytes, *, sync: bool) -> None:
    with named_os_errors(f"writing {path}"), _opened_aside(path) as descriptor:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        os.ftruncate(descriptor, len(content))
        if sync and not is_in_overlay(path):
            sync_descriptor(descriptor)


def put_in_place(path: Path) -> None:
    with named_os_errors(f"writing {path}"):
        _aside(path).replace(path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: files created, renamed or deleted there."""
    if is_in_overlay(path):
        return
    with named_os_errors(f"syncing the directory {path}"):
        sync_path(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    if is_in_overlay(path):
        return
    with named_os_errors(f"syncing {path}"):
        sync_path(path, os.O_RDONLY)


def read_if_there(path: Path) -> bytes | None:
    """The content of a file; None if there is none.

    Raises StoreReadOnlyError or StoreFailedError if it cannot be read, CorruptRecordError if it is
    too long to be such a file.
    """
    with named_os_errors(f"reading {path}"):
        try:
            with open(path, "rb", opener=open_regular) as file:
                file_bytes = os.fstat(file.fileno()).st_size
                if file_bytes > SMALL_BYTES_MAX:
                    raise CorruptRecordError(
                        str(path), SMALL_BYTES_MAX, f"it is {file_bytes} bytes long"
                    )
                return file.read() or b""
        except FileNotFoundError:
            return None
