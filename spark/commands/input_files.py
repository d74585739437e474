"""Files to ingest: what format they have, what they hold, and where Spark can read them.

Spark reads a path as a pattern, skips files whose names begin with `_` or `.`, and cannot read zip.
So each input is linked, or unpacked, into a folder of its own under a plain name.
"""

import gzip
import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from eoslog.errors import EoslogError

FORMATS = ("csv", "jsonl", "parquet", "text")
_FORMAT_OF_SUFFIX = {
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".log": "text",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".text": "text",
    ".txt": "text",
}
_READ_BYTES = 1 << 20


class InputFileError(EoslogError, ValueError):
    """A file to ingest is missing, damaged or of an unknown kind: nothing was landed."""


@dataclass(frozen=True)
class InputFolder:
    """Files of one format that Spark can read, in the order they were given.

    `names` are what the user calls the files; of a zip file's member also the member's name.
    """

    paths: Sequence[Path]
    names: Sequence[str]
    file_format: str
    size_bytes: int

    def named(self, text: str) -> str:
        """A text of Spark's with the user's names for the files that it mentions."""
        for path, name in zip(self.paths, self.names, strict=True):
            text = text.replace(f"file://{path}", name).replace(str(path), name)
        return text


def check_files(files: Iterable[Path], file_format: str | None = None) -> list[Path]:
    """Absolute paths of the files.

    Raises InputFileError for one that cannot be read, and for one whose name says no format if
    none is given.
    """
    found = []
    for path in files:
        if path.is_dir():
            raise InputFileError(f"{path}: a directory; name the files in it")
        try:
            with open(path, "rb"):
                found.append(path.resolve())
        except OSError as error:
            raise InputFileError(f"{path}: {error.strerror}") from error
    if not found:
        raise InputFileError("no file to ingest")
    for path in found:
        if file_format is None and path.suffix.lower() != ".zip":
            format_of(path)
    return found


def fingerprint(files: Iterable[Path]) -> str:
    """A text that stands for the contents of the files, whatever their names, times and order."""
    digests = []
    for path in files:
        digest = hashlib.blake2b(digest_size=16)
        with open(path, "rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
        digests.append(digest.digest())
    return hashlib.blake2b(b"".join(sorted(digests)), digest_size=12).hexdigest()


def format_of(path: Path) -> str:
    """The format that the file's name says, through .gz. Raises InputFileError if it says none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    found = _FORMAT_OF_SUFFIX.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise InputFileError(f"{path}: its name says no format; say --format {'|'.join(FORMATS)}")
    return found


def lay_out(files: Sequence[Path], folder: Path, file_format: str | None = None) -> InputFolder:
    """Put all inputs into the folder under plain names; members of a zip file become inputs too.

    Raises InputFileError for a damaged zip file, an unknown format, and inputs of several formats.
    """
    inputs: list[_Input] = []
    for path in files:
        if path.suffix.lower() == ".zip":
            inputs.extend(_unpack(path, folder, file_format, len(inputs)))
        else:
            inputs.append(_link(path, folder, file_format, len(inputs)))
    formats = {found for _, _, found in inputs}
    if len(formats) != 1:
        raise InputFileError(f"the files are of several formats: {', '.join(sorted(formats))}")
    paths = [path for path, _, _ in inputs]
    names = [name for _, name, _ in inputs]
    return InputFolder(paths, names, formats.pop(), sum(path.stat().st_size for path in paths))


@contextmanager
def opened_input(path: Path, name: str | None = None) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if it is a .gz file.

    With a `name` a file that cannot be unpacked is an InputFileError that names it.
    """
    packed = path.suffix.lower() == ".gz"
    try:
        with gzip.open(path, "rb") if packed else open(path, "rb") as file:
            yield cast("BinaryIO", file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputFileError(f"{name or path}: a damaged gzip file: {error}") from error


def _plain_name(number: int, name: Path, file_format: str) -> str:
    packed = ".gz" if name.suffix.lower() == ".gz" else ""
    return f"{number:06d}.{file_format}{packed}"


# Where Spark finds a file, what the user calls it, and its format.
_Input = tuple[Path, str, str]


def _link(path: Path, folder: Path, file_format: str | None, number: int) -> _Input:
    found = file_format or format_of(path)
    if found == "parquet" and path.suffix.lower() == ".gz":
        raise InputFileError(f"{path}: Parquet has compression of its own; unpack it first")
    link = folder / _plain_name(number, path, found)
    link.symlink_to(path)
    return link, str(path), found


def _unpack(path: Path, folder: Path, file_format: str | None, number: int) -> list[_Input]:
    inputs: list[_Input] = []
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = Path(member.filename)
                if member.is_dir() or name.parts[0] == "__MACOSX":
                    continue
                found = file_format or format_of(name)
                target = folder / _plain_name(number + len(inputs), name, found)
                # Reading to the end checks the member's checksum.
                with archive.open(member) as packed, open(target, "wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, _READ_BYTES)
                inputs.append((target, f"{path}/{member.filename}", found))
    # zipfile raises RuntimeError for an encrypted member, NotImplementedError for a rare method.
    except (zipfile.BadZipFile, EOFError, RuntimeError) as error:
        raise InputFileError(f"{path}: {error}") from error
    if not inputs:
        raise InputFileError(f"{path}: an empty zip file")
    return inputs
