"""An import appends each record of a file once, however often it runs, as the file grows."""

import gzip
import io
import json
import os
import sys
import threading
from contextlib import suppress

import pytest
from stores import values_of

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    InvalidRecordError,
    InvalidRequestError,
    InvalidTimestampError,
    MissingDependencyError,
    ProducerFencedError,
    RecordTooLargeError,
    SourceFileChangedError,
    StoreError,
    UnknownTopicOrPartitionError,
)
from eoslog.exchange import text_source
from eoslog.exchange.file_progress import ImportTransactions

T0 = TopicPartition("t", 0)


@pytest.fixture
def topic(store):
    store.create_topic("t")
    return store


@pytest.fixture
def file(tmp_path):
    return tmp_path / "x.jsonl"


def lines(*values):
    return "".join(json.dumps({"value": value}) + "\n" for value in values).encode()


def imported(store, file, **options):
    """Import a file; how many records were appended, and how many were there."""
    result = eoslog.import_file(store, "t", file, **options)
    return result.records, result.already_there


def test_a_second_run_adds_nothing_and_a_grown_file_its_new_lines(topic, file):
    file.write_bytes(lines("a", "b"))
    assert imported(topic, file) == (2, 0)
    assert imported(topic, file) == (0, 2)
    with file.open("ab") as grown:
        grown.write(lines("c"))
    assert imported(topic, file) == (1, 2)
    assert values_of(topic, "t") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("chunk_bytes", [8, 1 << 20])
@pytest.mark.parametrize("content", [lines("A", "b"), lines("a"), b"", lines("ab", "b")])
def test_a_changed_beginning_is_refused(topic, file, monkeypatch, content, chunk_bytes):
    monkeypatch.setattr(text_source, "CHUNK_BYTES", chunk_bytes)
    file.write_bytes(lines("a", "b"))
    assert imported(topic, file) == (2, 0)
    file.write_bytes(content)
    with pytest.raises(SourceFileChangedError, match="nothing was imported now"):
        imported(topic, file)
    assert values_of(topic, "t") == [b"a", b"b"]
    # Under another name it is another file.
    assert imported(topic, file, name="other") == (content.count(b"\n"), 0)


def test_the_identity_is_the_resolved_path_or_the_name(topic, file, tmp_path, monkeypatch):
    file.write_bytes(lines("a"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(file)
    assert imported(topic, "x.jsonl") == (1, 0)
    assert imported(topic, tmp_path / "link") == (0, 1)
    assert imported(topic, file, name="n") == (1, 0)
    assert imported(topic, io.BytesIO(file.read_bytes()), name="n") == (0, 1)
    # In another topic it is not there.
    topic.create_topic("u")
    assert eoslog.import_file(topic, "u", file).records == 1


def test_the_last_line_is_taken_when_it_is_whole(topic, file):
    file.write_bytes(lines("a") + b'{"value": ')
    result = eoslog.import_file(topic, "t", file)
    assert (result.records, result.left_bytes, result.left_line) == (1, 10, 2)
    with file.open("ab") as grown:
        grown.write(b'"b"}')
    result = eoslog.import_file(topic, "t", file)  # JSON says itself that it is whole.
    assert (result.records, result.left_bytes) == (1, 0)
    assert imported(topic, file) == (0, 2)
    with file.open("ab") as grown:
        grown.write(b"\r\n" + lines("c"))
    assert imported(topic, file) == (1, 2)
    assert values_of(topic, "t") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("options", [{"format": "lines"}, {"format": "csv"}])
def test_a_last_line_of_a_text_waits_for_its_end_unless_the_file_is_whole(topic, file, options):
    file.write_bytes(b"value\na\nb" if options["format"] == "csv" else b"a\nb")
    assert imported(topic, file, **options) == (1, 0)
    assert imported(topic, file, **options, whole=True) == (1, 1)
    assert imported(topic, file, **options, whole=True) == (0, 2)
    assert imported(topic, file, **options) == (0, 2)
    with file.open("ab") as grown:
        grown.write(b"b\n")
    with pytest.raises(SourceFileChangedError, match="has grown since"):
        imported(topic, file, **options)
    assert values_of(topic, "t") == [b"a", b"b"]


def test_what_is_before_a_bad_line_is_in_and_a_mended_file_goes_on(topic, file):
    file.write_bytes(lines("a") + b"{}\n" + lines("c"))
    with pytest.raises(InvalidRecordError, match=r"x.jsonl, line 2: byte 3: it has no") as caught:
        imported(topic, file)
    assert "the first record of the file is in t" in caught.value.__notes__[0]
    assert values_of(topic, "t") == [b"a"]
    with pytest.raises(InvalidRecordError, match=r"x.jsonl, line 2:"):
        imported(topic, file)
    file.write_bytes(lines("a", "b", "c"))
    assert imported(topic, file) == (2, 1)
    assert values_of(topic, "t") == [b"a", b"b", b"c"]


def test_what_the_topic_does_not_take_is_named_with_its_line(topic, file):
    topic.alter_topic("t", config={"max.message.bytes": 1000})
    file.write_bytes(lines("a", "x" * 2000))
    with pytest.raises(RecordTooLargeError, match=r"x.jsonl, line 2: it makes a batch of 2070"):
        imported(topic, file)
    file.write_bytes(b'{"value": "a", "timestamp_ms": -2}\n')
    with pytest.raises(InvalidTimestampError, match=r"x.jsonl, line 1"):
        imported(topic, file, name="2")
    assert values_of(topic, "t") == [b"a"]
    # The largest that it takes: what the import allows, the append allows.
    file.write_bytes(b"x" * 930 + b"\n" + b"x" * 931 + b"\n")
    with pytest.raises(RecordTooLargeError, match=r"line 2: it makes a batch of 1001"):
        imported(topic, file, format="lines", name="3")
    assert len(values_of(topic, "t")) == 2


def test_a_line_that_no_record_can_be_is_not_read_to_its_end(topic, file, monkeypatch):
    monkeypatch.setattr(text_source, "CHUNK_BYTES", 1 << 12)
    topic.alter_topic("t", config={"max.message.bytes": 1000})

    class Endless(io.RawIOBase):
        def readinto(self, target):
            target[:] = b"x" * len(target)
            return len(target)

        def readable(self):
            return True

    with pytest.raises(RecordTooLargeError, match="line 1: it does not end within"):
        imported(topic, Endless(), name="endless", format="lines")


def test_each_chunk_is_a_transaction(topic, file, monkeypatch):
    monkeypatch.setattr(text_source, "CHUNK_BYTES", 64)
    commits = []
    commit = ImportTransactions.commit
    monkeypatch.setattr(
        ImportTransactions,
        "commit",
        lambda self, progress: (commits.append(progress.records), commit(self, progress)),
    )
    file.write_bytes(lines(*map(str, range(20))))
    seen = []
    assert imported(topic, file, progress=lambda *done: seen.append(done)) == (20, 0)
    assert len(commits) > 4
    assert commits == sorted(commits)
    assert seen[-1] == (file.stat().st_size, file.stat().st_size)
    assert values_of(topic, "t") == [b"%d" % number for number in range(20)]


def test_two_imports_at_once_fence_each_other(topic, file):
    file.write_bytes(lines("a", "b"))
    with ImportTransactions(topic, "t", str(file)) as first:
        first.producer.begin_transaction()
        first.producer.append("t", 0, [b"a"])
        assert imported(topic, file) == (2, 0)
        with pytest.raises(ProducerFencedError):
            first.commit(first.progress("x", "jsonl"))
    assert values_of(topic, "t") == [b"a", b"b"]


def test_many_at_once_import_each_line_once(topic, file, monkeypatch):
    monkeypatch.setattr(text_source, "CHUNK_BYTES", 256)
    file.write_bytes(lines(*map(str, range(100))))

    def work():
        with suppress(ProducerFencedError):
            imported(topic, file)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    imported(topic, file)
    assert values_of(topic, "t") == [b"%d" % number for number in range(100)]


def test_keys_choose_partitions_unless_one_is_named(store, file):
    store.create_topic("t", partitions=4)
    keys = [f"k{number}" for number in range(40)]
    file.write_text("".join(json.dumps({"value": key, "key": key}) + "\n" for key in keys))
    assert imported(store, file) == (40, 0)
    store.create_topic("by-send", partitions=4)
    with store.producer() as producer:
        for key in keys:
            producer.send("by-send", key.encode(), key.encode())
    for number in range(4):
        assert values_of(store, "t", number) == values_of(store, "by-send", number)
    assert imported(store, file, name="2", partition=3) == (40, 0)
    assert values_of(store, "t", 3)[-40:] == [key.encode() for key in keys]


def test_a_csv_without_values_is_objects_of_its_texts(topic, tmp_path):
    file = tmp_path / "x.csv"
    file.write_bytes(b'\xef\xbb\xbf\r\nid,"na""me",\r\n007,"a\r\nb",\r\n\r\n,"","\xc3\xa9"\r\n')
    assert imported(topic, file) == (2, 0)
    assert values_of(topic, "t") == [
        b'{"id":"007","na\\"me":"a\\r\\nb","_c2":null}',
        b'{"id":null,"na\\"me":"","_c2":"\xc3\xa9"}',
    ]
    with file.open("ab") as grown:
        grown.write(b"1,2,3\r\n4,5\r\n")
    with pytest.raises(InvalidRecordError, match=r"x.csv, line 8: the row has 2 cells") as caught:
        imported(topic, file)
    assert "the first 3 records of the file are in t" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"value,value\na,b\n", "line 1: a column is named twice"),
        (b'\nval"u"e\na\n', "line 2: byte 4: a quote"),
        (b"\xff\xfev\0", "line 1: a byte-order mark of UTF-16"),
    ],
)
def test_a_csv_without_a_header_is_refused(topic, content, words):
    with pytest.raises(InvalidRecordError, match=words):
        imported(topic, io.BytesIO(content), name="x", format="csv")


@pytest.mark.parametrize("format", ["jsonl", "csv", "lines"])
@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_records(topic, format, content):
    expected = int(format == "lines" and len(content) > 0)
    assert imported(topic, io.BytesIO(content), name="x", format=format, whole=True) == (
        *(expected, 0),
    )


def test_gzip_is_unpacked_and_a_torn_one_refused(topic, tmp_path):
    file = tmp_path / "x.csv.gz"
    text = b"value\n" + b"".join(b"%d\n" % number for number in range(1000))
    file.write_bytes(gzip.compress(text))
    assert imported(topic, file) == (1000, 0)
    file.write_bytes(gzip.compress(text) + gzip.compress(b"more\n"))
    assert imported(topic, file) == (1, 1000)
    file.write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(InvalidRecordError, match="a damaged gzip file"):
        imported(topic, file, name="torn")


def test_a_pipe_is_read_like_a_file(topic, file):
    for count, new in ((1, 1), (3, 2)):
        read_end, write_end = os.pipe()
        os.write(write_end, lines(*map(str, range(count))))
        os.close(write_end)
        with open(read_end, "rb") as pipe:
            assert imported(topic, pipe, name="pipe") == (new, count - new)


def test_parquet_goes_on_at_its_row_and_may_not_change(topic, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from eoslog.exchange import parquet_files

    monkeypatch.setattr(parquet_files, "_BATCH_ROWS_MAX", 7)
    file = tmp_path / "x.parquet"
    table = pa.table(
        {
            "other": range(100),
            "value": pa.array([f"v{number}" for number in range(100)]).dictionary_encode(),
            "timestamp": pa.array([None, *range(1, 100)], pa.timestamp("us", "UTC")),
        }
    )
    parquet.write_table(table, file, row_group_size=30)
    commit = ImportTransactions.commit
    commits = []

    def stop(self, progress):
        if len(commits) == 6:
            raise KeyboardInterrupt
        commits.append(progress)
        commit(self, progress)

    monkeypatch.setattr(ImportTransactions, "commit", stop)
    with pytest.raises(KeyboardInterrupt):
        imported(topic, file)
    before = commits[-1].records
    assert len(values_of(topic, "t")) == before == 37
    monkeypatch.setattr(ImportTransactions, "commit", commit)
    assert imported(topic, file) == (100 - before, before)
    assert values_of(topic, "t") == [b"v%d" % number for number in range(100)]
    assert imported(topic, file) == (0, 100)
    parquet.write_table(table.slice(1), file)
    with pytest.raises(SourceFileChangedError):
        imported(topic, file)
    parquet.write_table(table.select(["other"]), file)
    with pytest.raises(InvalidRequestError, match="no column 'value'"):
        imported(topic, file, name="2")
    file.write_bytes(b"PAR1")
    with pytest.raises(InvalidRecordError, match="not Parquet"):
        imported(topic, file, name="3")


def test_parquet_alone_needs_pyarrow(topic, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for module in ("eoslog.exchange.parquet_files", "eoslog.columns.arrow"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    file.write_bytes(lines("a"))
    assert imported(topic, file) == (1, 0)
    for form in ("jsonl", "csv"):
        assert eoslog.export_topic(topic, "t", file, format=form).records == 1
    with pytest.raises(MissingDependencyError, match="Parquet needs pyarrow"):
        imported(topic, file, format="parquet", name="2")
    with pytest.raises(MissingDependencyError, match="Parquet needs pyarrow"):
        eoslog.export_topic(topic, "t", file, format="parquet")


def test_another_format_is_refused(topic, file):
    file.write_bytes(lines("a"))
    imported(topic, file)
    with pytest.raises(InvalidRequestError, match="took it as jsonl, this one as lines"):
        imported(topic, file, format="lines")


def test_an_offset_that_no_import_committed_is_refused(topic, file):
    file.write_bytes(lines("a"))
    result = eoslog.import_file(topic, "t", file)
    assert result.name == str(file)
    group = f"import:t:{file}"
    with topic.consumer(group) as consumer:
        consumer.commit({T0: 1})
    with pytest.raises(StoreError, match="no import committed"):
        imported(topic, file)
    topic.delete_group(group)
    assert imported(topic, file) == (1, 0)


def test_a_topic_that_was_made_again_gets_the_file_again(topic, file):
    file.write_bytes(lines("a"))
    imported(topic, file)
    topic.delete_topic("t")
    topic.create_topic("t")
    assert imported(topic, file) == (1, 0)


def test_wrong_arguments_are_refused(topic, file, tmp_path):
    file.write_bytes(lines("a"))
    with pytest.raises(UnknownTopicOrPartitionError):
        eoslog.import_file(topic, "no", file)
    with pytest.raises(UnknownTopicOrPartitionError):
        imported(topic, file, partition=1)
    with pytest.raises(FileNotFoundError):
        imported(topic, tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        imported(topic, tmp_path)
    with pytest.raises(InvalidRequestError, match="needs a name"):
        imported(topic, io.BytesIO())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="is a pipe or device, which needs a name"):
        imported(topic, tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="format must be one of"):
        imported(topic, file, format="xml")
    with pytest.raises(InvalidRequestError, match="at most 472 bytes"):
        imported(topic, file, name="x" * 472)
    with pytest.raises(InvalidRequestError, match="not from a file object"):
        imported(topic, io.BytesIO(), name="x", format="parquet")
    for options in ({"name": 1}, {"format": 1}, {"partition": "0"}, {"progress": 1}):
        with pytest.raises(TypeError):
            imported(topic, file, **options)
    with pytest.raises(TypeError):
        imported(topic, 1)
    with pytest.raises(TypeError):
        eoslog.import_file(None, "t", file)
    assert values_of(topic, "t") == []
