"""Files to ingest: their formats, zip files, plain names for Spark, and what is refused."""

import gzip
import zipfile
from pathlib import Path

import pytest

from eoslog.spark.commands.input_files import (
    InputFileError,
    check_files,
    fingerprint,
    format_of,
    lay_out,
)


def written(path, data=b"a,b\n1,2\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "laid out"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    ("name", "file_format"),
    [
        ("a.csv", "csv"),
        ("a.CSV", "csv"),
        ("a.csv.gz", "csv"),
        ("a.json", "jsonl"),
        ("a.jsonl", "jsonl"),
        ("a.ndjson.gz", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.snappy.parquet", "parquet"),
        ("a.txt", "text"),
        ("a.2026.log", "text"),
    ],
)
def test_the_name_says_the_format(name, file_format):
    assert format_of(Path(name)) == file_format


@pytest.mark.parametrize("name", ["a", "a.gz", "a.xlsx", ".csv", "csv"])
def test_a_name_that_says_none_is_refused_with_the_option_to_use(name):
    with pytest.raises(InputFileError, match="--format csv"):
        format_of(Path(name))


def test_files_are_found_whatever_the_current_directory(tmp_path, monkeypatch):
    written(tmp_path / "a.csv")
    monkeypatch.chdir(tmp_path)
    assert check_files([Path("a.csv")]) == [tmp_path / "a.csv"]


@pytest.mark.parametrize("name", ["gone.csv", "folder"])
def test_a_missing_file_or_a_directory_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputFileError, match=name):
        check_files([tmp_path / name])


def test_no_file_at_all_is_refused():
    with pytest.raises(InputFileError, match="no file"):
        check_files([])


def test_the_fingerprint_is_of_the_contents_alone(tmp_path):
    first, second = written(tmp_path / "a", b"1"), written(tmp_path / "b", b"2")
    copy = written(tmp_path / "elsewhere" / "c", b"1")
    assert fingerprint([first, second]) == fingerprint([second, copy])
    assert fingerprint([first, second]) != fingerprint([first])
    assert fingerprint([first, first]) != fingerprint([first])


def test_every_input_gets_a_plain_name_in_the_order_given(tmp_path, folder):
    # Spark would skip a name with an underscore, and read brackets and commas as a pattern.
    paths = [
        written(tmp_path / name, name.encode()) for name in ("_b[1].csv", "a,{x}.csv", ".c.csv")
    ]
    inputs = lay_out(paths, folder)
    assert [path.name for path in inputs.paths] == [f"00000{number}.csv" for number in range(3)]
    assert [path.read_bytes().decode() for path in inputs.paths] == [path.name for path in paths]
    assert inputs.size_bytes == sum(path.stat().st_size for path in paths)


def test_a_gzip_file_keeps_the_suffix_that_tells_spark(tmp_path, folder):
    (path,) = lay_out([written(tmp_path / "a.csv.gz", gzip.compress(b"x"))], folder).paths
    assert path.name == "000000.csv.gz"


def test_the_members_of_a_zip_file_are_inputs(tmp_path, folder):
    members = {"data/one.csv": b"1", "__MACOSX/._one.csv": b"junk", "two.csv": b"2"}
    archive = zipped(tmp_path / "a.zip", members)
    inputs = lay_out([written(tmp_path / "z.csv", b"0"), archive], folder)
    assert inputs.file_format == "csv"
    assert [path.read_bytes() for path in inputs.paths] == [b"0", b"1", b"2"]


def test_a_member_cannot_leave_the_folder(tmp_path, folder):
    archive = zipped(tmp_path / "a.zip", {"../../outside.csv": b"1"})
    (path,) = lay_out([archive], folder).paths
    assert path.parent == folder
    assert not (tmp_path.parent / "outside.csv").exists()


def test_a_format_that_is_said_goes_before_the_name(tmp_path, folder):
    inputs = lay_out([written(tmp_path / "a.dat")], folder, "text")
    assert inputs.file_format == "text"


def test_several_formats_are_refused(tmp_path, folder):
    paths = [written(tmp_path / "a.csv"), written(tmp_path / "b.txt")]
    with pytest.raises(InputFileError, match="csv, text"):
        lay_out(paths, folder)


def test_a_packed_parquet_file_is_refused(tmp_path, folder):
    with pytest.raises(InputFileError, match="unpack it"):
        lay_out([written(tmp_path / "a.parquet.gz")], folder)


@pytest.mark.parametrize("damage", ["no zip", "cut", "flipped", "empty"])
def test_a_damaged_zip_file_is_named(tmp_path, folder, damage):
    path = zipped(tmp_path / "a.zip", {} if damage == "empty" else {"a.csv": b"1,2\n" * 100})
    data = bytearray(path.read_bytes())
    if damage == "no zip":
        data = bytearray(b"hello")
    elif damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputFileError, match=r"a\.zip"):
        lay_out([path], folder)
