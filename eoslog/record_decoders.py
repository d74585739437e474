"""What the records of the internal logs say: `__transaction_state` and `__consumer_offsets`.

A decoder takes a record's key and value and answers both as fields by name, each with the text that
Kafka's own decoders print. No value is a tombstone: the key is gone. Keys of types that Kafka does
not know are the store's own; their values are JSON.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eoslog.bindings.transaction_record import decode_transaction_value, transactional_id_of
from eoslog.errors import CorruptRecordError
from eoslog.group_members import GroupMembers
from eoslog.json_text import loads_json
from eoslog.member_records import (
    KEY_TYPE,
    PROTOCOL_TYPE,
    decode_members_key,
    decode_members_value,
)
from eoslog.offset_records import decode_offset_key, decode_offset_value
from eoslog.state_log import PRODUCER_ID_BLOCK
from eoslog.topic_name import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC

_TYPE = struct.Struct(">h")


class Decoded(dict[str, Any]):
    """The fields of a key or value, and the text that Kafka's decoders make of them."""

    def __init__(self, text: str, /, **fields: Any) -> None:
        super().__init__(fields)
        self.text = text


Decoder = Callable[[bytes, bytes | None], tuple[Any, Any]]


def decoder_of(path: Path) -> Decoder | None:
    """The decoder for a file, by the topic in its directory's name; None if it needs none."""
    return _BY_TOPIC.get(path.absolute().parent.name.rpartition("-")[0])


def decode_transaction_record(key: bytes, value: bytes | None) -> tuple[Any, Any]:
    """A record of `__transaction_state`. Raises CorruptRecordError."""
    if len(key) >= _TYPE.size and _TYPE.unpack_from(key)[0] >= PRODUCER_ID_BLOCK:
        return _own_record(key, value)
    transactional_id = transactional_id_of(key)
    if transactional_id is None:
        return key, value
    text = f"transaction_metadata::transactionalId={transactional_id}"
    decoded_key = Decoded(text, type=0, transactionalId=transactional_id)
    return decoded_key, None if value is None else _transaction(value)


def _transaction(value: bytes) -> Decoded:
    found = decode_transaction_value(value)
    partitions = [f"{topic}-{number}" for topic, number in found["partitions"] or ()]
    text = (
        f"producerId:{found['producer_id']},producerEpoch:{found['producer_epoch']},"
        f"state={found['state']},partitions=[{','.join(partitions)}],"
        f"txnLastUpdateTimestamp={found['last_update_ms']},txnTimeoutMs={found['timeout_ms']}"
    )
    return Decoded(
        text,
        version=found["version"],
        producerId=found["producer_id"],
        producerEpoch=found["producer_epoch"],
        state=found["state"],
        partitions=partitions,
        txnLastUpdateTimestamp=found["last_update_ms"],
        txnStartTimestamp=found["start_ms"],
        txnTimeoutMs=found["timeout_ms"],
        previousProducerId=found["previous_producer_id"],
        nextProducerId=found["next_producer_id"],
        nextProducerEpoch=found["next_producer_epoch"],
        lastProducerEpoch=found["last_producer_epoch"],
        clientTransactionVersion=found["client_transaction_version"],
        prepared=found["prepared"],
    )


def _own_record(key: bytes, value: bytes | None) -> tuple[Any, Any]:
    number = _TYPE.unpack_from(key)[0]
    name = key[_TYPE.size :].decode("utf-8", "replace")
    decoded_key = Decoded(f"eoslog::type={number},name={name}", type=number, name=name)
    if value is None:
        return decoded_key, None
    try:
        fields = loads_json(value)
        return decoded_key, Decoded(value.decode(), **fields)
    except (ValueError, TypeError) as error:
        raise CorruptRecordError("", 0, f"the value is no JSON object: {error}") from error


def decode_offset_record(key: bytes, value: bytes | None) -> tuple[Any, Any]:
    """A record of `__consumer_offsets`. Raises CorruptRecordError."""
    found = decode_offset_key(key)
    if found is None:
        return _members_record(key, value)
    where = f"{found.topic_partition.topic}-{found.topic_partition.partition}"
    decoded_key = Decoded(
        f"offset_commit::group={found.group},partition={where}",
        type=_TYPE.unpack_from(key)[0],
        group=found.group,
        topic=found.topic_partition.topic,
        partition=found.topic_partition.partition,
    )
    return decoded_key, None if value is None else _offset(value)


def _offset(value: bytes) -> Decoded:
    found = decode_offset_value(value)
    metadata = f",metadata={found.metadata}" if found.metadata else ""
    return Decoded(
        f"offset={found.offset}{metadata}",
        version=_TYPE.unpack_from(value)[0],
        offset=found.offset,
        leaderEpoch=found.leader_epoch,
        metadata=found.metadata,
        commitTimestamp=found.commit_timestamp_ms,
        expireTimestamp=found.expire_timestamp_ms,
    )


def _members_record(key: bytes, value: bytes | None) -> tuple[Any, Any]:
    """What is kept of a group's members; records of other types are left as they are."""
    group = None if len(key) < _TYPE.size else decode_members_key(key)
    if group is None:
        return key, value
    decoded_key = Decoded(f"group_metadata::group={group}", type=KEY_TYPE, group=group)
    if value is None:
        return decoded_key, None
    try:
        found = decode_members_value(value)
    except CorruptRecordError:
        found = None
    return decoded_key, value if found is None else _members(value, found)


def _members(value: bytes, found: GroupMembers) -> Decoded:
    assignments = {
        member.member_id: f"[{', '.join(map(str, sorted(member.assigned)))}]"
        for member in found.members
    }
    assignment = ",".join(f"{name}={assigned}" for name, assigned in assignments.items())
    fields = {
        "protocolType": PROTOCOL_TYPE,
        "protocol": found.strategy,
        "generationId": found.generation,
        "assignment": f"{{{assignment}}}",
    }
    return Decoded(
        json.dumps(fields, separators=(",", ":")),
        version=_TYPE.unpack_from(value)[0],
        protocolType=PROTOCOL_TYPE,
        protocol=found.strategy,
        generationId=found.generation,
        currentStateTimestamp=found.state_timestamp_ms,
        members=[
            {
                "memberId": member.member_id,
                "clientId": member.client_id,
                "clientHost": member.client_host,
                "generationId": member.generation,
                "topics": list(member.topics),
                "assignment": [str(where) for where in sorted(member.assigned)],
                "owned": [str(where) for where in sorted(member.held)],
            }
            for member in found.members
        ],
    )


_BY_TOPIC: dict[str, Decoder] = {
    TRANSACTION_STATE_TOPIC: decode_transaction_record,
    CONSUMER_OFFSETS_TOPIC: decode_offset_record,
}
