"""Faults of texts that are not the UTF-8 that they should be: their file, line and byte."""

from pathlib import Path

from eoslog.spark.commands.input_files import InputFileError, opened_input

# UTF-32's little-endian mark begins with that of UTF-16.
_OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


def check_no_utf_16(path: Path, name: str) -> None:
    """Raise InputFileError for a text whose first bytes say that it is UTF-16 or UTF-32."""
    with opened_input(path, name) as file:
        first = file.read(4)
    if first.startswith(_OTHER_MARKS):
        raise InputFileError(
            f"{name}, line 1, byte 1: a byte-order mark of UTF-16 or UTF-32, and text must be "
            "UTF-8: convert the file first"
        )


def fault_in_utf8(path: Path, name: str) -> str | None:
    """Describe the first byte of a text that is not UTF-8; None if it is all UTF-8."""
    position = 0
    with opened_input(path, name) as file:
        for line_number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return (
                    f"{name}, line {line_number}, byte {error.start + 1} (byte "
                    f"{position + error.start + 1} of the file): 0x{line[error.start]:02x} is "
                    "not UTF-8: convert the file first"
                )
            position += len(line)
    return None
