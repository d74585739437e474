"""`eoslog dump` of the internal topics, against what Kafka's tool printed of the same records.

`golden/kafka_4_4_dump.json` holds keys, values and what `DumpLogSegments` of Kafka 4.4.0 printed of
them after the names of the headers, with its decoder of the topic. Each was the first of its log.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cli_calls import DONE, call

from eoslog.bindings.record_batch import BatchEncoder

GOLDEN = json.loads((Path(__file__).parent / "golden" / "kafka_4_4_dump.json").read_text())
OPTIONS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "orders": "--print-data-log",
}


def bytes_of(encoded: str | None) -> bytes | None:
    return None if encoded is None else base64.b64decode(encoded)


@pytest.mark.parametrize("known_by", ["directory", "option"])
@pytest.mark.parametrize("record", GOLDEN, ids=range(len(GOLDEN)))
def test_a_record_is_printed_as_kafka_prints_it(tmp_path, record, known_by):
    topic = record["topic"]
    path = tmp_path / (f"{topic}-0" if known_by == "directory" else "moved") / f"{0:020}.log"
    path.parent.mkdir()
    batch = BatchEncoder().encode_columns(
        [bytes_of(record["value"])], [bytes_of(record["key"])], timestamp_ms=1000
    )
    path.write_bytes(batch)
    option = "--print-data-log" if known_by == "directory" else OPTIONS[topic]
    answer = call("dump", option, path)
    assert answer.status == DONE
    text = answer.stdout.partition("headerKeys: []")[2].removesuffix("\n")
    assert text == (f" {record['text']}" if record["text"] else "")
    assert call("dump", option, "--json", path).status == DONE


@pytest.mark.parametrize("topic", OPTIONS)
def test_a_record_without_a_key_is_shown_without_it(tmp_path, topic):
    path = tmp_path / f"{topic}-0" / f"{0:020}.log"
    path.parent.mkdir()
    path.write_bytes(BatchEncoder().encode_columns([b"v"], [None], timestamp_ms=1000))
    answer = call("dump", "--deep", path)
    assert answer.stdout.endswith(" headerKeys: [] payload: v\n")
    record = call("dump", "--deep", "--json", path).json_lines[-1]
    assert (record["key"], record["payload"]) == (None, "v")
