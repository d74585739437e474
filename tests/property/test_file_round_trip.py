"""What an export wrote, an import reads: equal records, in every format."""

import base64
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.exchange import text_source

TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\,\r\n\0é😀'), max_size=30)
BYTES = st.none() | TEXTS.map(lambda text: text.encode())
ANY_BYTES = BYTES | st.binary(max_size=30)
TIMES = st.just(-1) | st.integers(0, 2**41)


def records(cells):
    return st.lists(
        st.tuples(cells, cells, TIMES, st.lists(st.tuples(TEXTS, ANY_BYTES), max_size=3)),
        max_size=12,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("round-trip") / "store"
    with eoslog.open(path, create=True, durability="process", config=QUIET) as opened:
        yield opened


def read(store, topic):
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found = []
        while polled := consumer.poll(timeout=0):
            found += [(one.value, one.key, one.timestamp_ms, list(one.headers)) for one in polled]
        return found


def as_envelope(record, offset):
    def text(data):
        try:
            return data if data is None else data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}

    value, key, timestamp_ms, headers = record
    where = {"topic": "in", "partition": 0, "offset": offset, "timestamp_ms": timestamp_ms}
    pairs = [[name, text(one)] for name, one in headers]
    return {**where, "key": text(key), "value": text(value), "headers": pairs}


def round_trip(store, given_records, file_format):
    """Append, export, import, and compare; return the text."""
    for topic in ("in", "out"):
        if topic in store.topics():
            store.delete_topic(topic)
        store.create_topic(topic)
    if given_records:
        values, keys, timestamps, headers = map(list, zip(*given_records, strict=True))
        with store.producer() as producer:
            producer.append("in", 0, values, keys, timestamps, headers)
    text = io.BytesIO()
    exported = eoslog.export_topic(store, "in", text, format=file_format)
    assert exported.records == len(given_records)
    assert exported.file_bytes == len(text.getvalue())
    return text


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
@given(given_records=records(ANY_BYTES))
@settings(max_examples=25)
def test_json_lines(store, chunk_bytes, given_records):
    text = round_trip(store, given_records, "jsonl")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_source, "CHUNK_BYTES", chunk_bytes)
        eoslog.import_file(store, "out", io.BytesIO(text.getvalue()), name="x")
        again = eoslog.import_file(store, "out", io.BytesIO(text.getvalue()), name="x")
    assert (again.records, again.already_there) == (0, len(given_records))
    assert read(store, "out") == given_records
    # And it is what Python's json writes.
    lines = text.getvalue().decode().split("\n")[:-1]
    assert lines == [
        json.dumps(as_envelope(one, offset), ensure_ascii=False)
        for offset, one in enumerate(given_records)
    ]


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
@given(given_records=records(BYTES))
@settings(max_examples=25)
def test_csv(store, chunk_bytes, given_records):
    text = round_trip(store, given_records, "csv")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_source, "CHUNK_BYTES", chunk_bytes)
        given_file = io.BytesIO(text.getvalue())
        eoslog.import_file(store, "out", given_file, name="x", format="csv")
    assert read(store, "out") == given_records


@given(given_records=records(ANY_BYTES))
@settings(max_examples=15)
def test_parquet(store, tmp_path_factory, given_records):
    text = round_trip(store, given_records, "parquet")
    path = tmp_path_factory.mktemp("parquet") / "x.parquet"
    path.write_bytes(text.getvalue())
    eoslog.import_file(store, "out", path)
    assert read(store, "out") == given_records
