"""Decoders of the internal logs' records: `__transaction_state` and `__consumer_offsets`.

A decoder takes a record's key and value and answers both as the objects that Kafka's dump prints.
No value is a tombstone: the key is gone. Keys of types that Kafka does not know are the store's
own; their values are JSON.

A message in Kafka's binary form is read by its definition into the JSON that Kafka prints. A
definition is a text: `name:type` for each field, in order. A type is one of `_NUMBERS`, `string`,
`bytes`, `uuid`, an array `[type]`, or a struct `{fields}`; a question mark after it allows null. In
the flexible form lengths are compact, a struct ends with tagged fields, and its definition has
those as `#tag name:type=default`, where the JSON has them.
"""

import base64
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from eoslog.bindings.transaction_record import STATE_NAMES
from eoslog.common.json_text import loads_json
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.errors import CorruptRecordError
from eoslog.transactions.state_key import PRODUCER_ID_BLOCK

UNKNOWN_TYPE = "Unknown record type "

_INT16 = struct.Struct(">h")
_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
}
_UUID_BYTES = 16
_NO_UUID = "AAAAAAAAAAAAAAAAAAAAAA"
_STRING_BYTES_MAX = 0x7FFF
_TOKEN = re.compile(r"\s*([\[\]{}?]|#\d+|=-?\w+|\w+:?)")
_CONTROL = re.compile(r"(?<!\\)((?:\\\\)*)\\u([0-9a-f]{4})")


class Decoded(dict[str, Any]):
    """Key or value as Kafka's dump shows it: its type or version, and its fields."""

    @property
    def text(self) -> str:
        """Text that Kafka prints."""
        text = json.dumps(self, ensure_ascii=False, separators=(",", ":"))
        return _CONTROL.sub(lambda match: f"{match[1]}\\u{match[2].upper()}", text)


class OwnKey(Decoded):
    """A key of one of the store's own types, which Kafka does not know."""


Decoder = Callable[[bytes, bytes | None], tuple[Any, Any]]


class _Field(NamedTuple):
    """Field of a message; `inner` are those of a struct, or the element of an array."""

    name: str
    kind: str
    nullable: bool
    inner: tuple["_Field", ...]
    tag: int | None
    default: Any


class _Message:
    """Reader of a message, by its definition."""

    def __init__(self, definition: str, *, flexible: bool = False) -> None:
        self._definition = definition
        self._flexible = flexible

    @cached_property
    def fields(self) -> tuple[_Field, ...]:
        tokens = [match[1] for match in _TOKEN.finditer(self._definition)]
        return tuple(_parse(tokens[::-1]))

    def read(self, data: bytes) -> dict[str, Any]:
        """Return the fields by name; what follows them is passed over.

        Raises ValueError, with the words of Kafka's own error.
        """
        return _Reader(data, self._flexible).struct(self.fields)


def _parse(tokens: list[str]) -> Iterator[_Field]:
    """Yield the fields up to the end of a struct; the next token is the last one."""
    while tokens and tokens[-1] != "}":
        tag = None
        if tokens[-1].startswith("#"):
            tag = int(tokens.pop()[1:])
        yield _parse_type(tokens.pop().rstrip(":"), tokens, tag)


def _parse_type(name: str, tokens: list[str], tag: int | None = None) -> _Field:
    kind = tokens.pop()
    inner: tuple[_Field, ...] = ()
    if kind == "[":
        inner = (_parse_type(name, tokens),)
        tokens.pop()
    elif kind == "{":
        inner = tuple(_parse(tokens))
        tokens.pop()
    nullable = bool(tokens) and tokens[-1] == "?"
    if nullable:
        tokens.pop()
    of_struct = {field.name: field.default for field in inner}
    default: Any = {"[": [], "{": of_struct, "uuid": _NO_UUID}.get(kind, 0)
    if tokens and tokens[-1].startswith("="):
        default = int(tokens.pop()[1:])
    return _Field(name, kind, nullable, inner, tag, default)


class _Reader:
    def __init__(self, data: bytes, flexible: bool) -> None:
        self._data = data
        self._at = 0
        self._flexible = flexible

    def struct(self, fields: tuple[_Field, ...]) -> dict[str, Any]:
        found = {field.name: self._value(field) for field in fields if field.tag is None}
        tagged = self._tagged(fields) if self._flexible else {}
        return {
            field.name: (found if field.tag is None else tagged)[field.name]
            for field in fields
            if field.tag is None or tagged.get(field.name, field.default) != field.default
        }

    def _tagged(self, fields: tuple[_Field, ...]) -> dict[str, Any]:
        by_tag = {field.tag: field for field in fields if field.tag is not None}
        found = {}
        for _ in range(self._varint()):
            field = by_tag.get(self._varint())
            size_bytes = self._varint()
            if field is None:
                self._array(size_bytes)
            else:
                found[field.name] = self._value(field)
        return found

    def _value(self, field: _Field) -> Any:
        kind = field.kind
        if kind in _NUMBERS:
            return _NUMBERS[kind].unpack(self._take(_NUMBERS[kind].size))[0]
        if kind == "uuid":
            return base64.urlsafe_b64encode(self._take(_UUID_BYTES)).decode().rstrip("=")
        if kind == "{":
            return None if field.nullable and self._is_null(field) else self.struct(field.inner)
        count = self._length(wide=kind != "string")
        if count < 0:
            if field.nullable:
                return None
            raise ValueError(f"non-nullable field {field.name} was serialized as null")
        if kind == "[":
            left = len(self._data) - self._at
            if count > left:
                raise ValueError(
                    f"Tried to allocate a collection of size {count}, but there are only {left} "
                    "bytes remaining."
                )
            return [self._value(field.inner[0]) for _ in range(count)]
        if kind == "bytes":
            return base64.b64encode(self._array(count)).decode()
        if count > _STRING_BYTES_MAX:
            raise ValueError(f"string field {field.name} had invalid length {count}")
        return self._array(count).decode("utf-8", "replace")

    def _is_null(self, struct_field: _Field) -> bool:
        if struct_field.tag is not None:
            return self._varint() <= 0
        return int(_NUMBERS["int8"].unpack(self._take(1))[0]) < 0

    def _length(self, *, wide: bool) -> int:
        if self._flexible:
            return self._varint() - 1
        number = _NUMBERS["int32" if wide else "int16"]
        return int(number.unpack(self._take(number.size))[0])

    def _varint(self) -> int:
        found = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            found = (found | (byte & 0x7F) << shift) & 0xFFFFFFFF
            if byte < 0x80:
                return found - (1 << 32) if found >= 1 << 31 else found
        raise ValueError(
            "Varint is too long, the most significant bit in the 5th byte is set, converted "
            f"value: {found:x}"
        )

    def _array(self, size_bytes: int) -> bytes:
        left = len(self._data) - self._at
        if size_bytes > left:
            raise ValueError(
                f"Error reading byte array of {size_bytes} byte(s): only {left} byte(s) available"
            )
        return self._take(max(size_bytes, 0))

    def _take(self, size_bytes: int) -> bytes:
        end = self._at + size_bytes
        if end > len(self._data):
            raise ValueError("null")  # Kafka's error has no words.
        taken = self._data[self._at : end]
        self._at = end
        return taken


class _RecordType(NamedTuple):
    key: _Message
    values: Mapping[int, _Message]


def _flexible(definition: str) -> _Message:
    return _Message(definition, flexible=True)


def _group(definition: str, *, of_member: str = "") -> _RecordType:
    """A type of record of the newer kinds of groups."""
    return _RecordType(_Message(f"groupId:string {of_member}"), {0: _flexible(definition)})


def _of_member(definition: str) -> _RecordType:
    return _group(definition, of_member="memberId:string")


_OFFSET_KEY = _Message("group:string topic:string partition:int32")
_OFFSET = "offset:int64 metadata:string commitTimestamp:int64"
_OFFSET_WITH_EPOCH = "offset:int64 leaderEpoch:int32 metadata:string commitTimestamp:int64"


def _members(of_group: str, *of_member: str, flexible: bool = False) -> _Message:
    member = f"memberId:string {' '.join(of_member)} sessionTimeout:int32 "
    member += "subscription:bytes assignment:bytes"
    return _Message(
        "protocolType:string generation:int32 protocol:string? leader:string? "
        f"{of_group} members:[{{{member}}}]",
        flexible=flexible,
    )


_CLIENT = "clientId:string clientHost:string"
_INSTANCE = "groupInstanceId:string?"
_REBALANCE = "rebalanceTimeout:int32"
_SINCE = "currentStateTimestamp:int64"
_PARTITIONS = "{topicId:uuid partitions:[int32]}"
_ASSIGNED = "{topicId:uuid partitions:[int32] #0 assignmentEpochs:[int32]?}"
_ASSIGNMENT_EPOCH = "assignmentEpoch:int32 #0 assignmentTimestamp:int64"
_PAIRS = "[{key:string value:string}]"
_TASKS = "[{subtopologyId:string partitions:[int32]}]"
_TASKS_WITH_EPOCHS = "[{subtopologyId:string partitions:[int32] #0 assignmentEpochs:[int32]?}]"
_TOPICS_WITH_CONFIGS = (
    f"[{{name:string partitions:int32 replicationFactor:int16 topicConfigs:{_PAIRS}}}]"
)

_OFFSET_TYPES = {
    0: _RecordType(_OFFSET_KEY, {0: _Message(_OFFSET)}),
    1: _RecordType(
        _OFFSET_KEY,
        {
            0: _Message(_OFFSET),
            1: _Message(f"{_OFFSET} expireTimestamp:int64"),
            2: _Message(_OFFSET),
            3: _Message(_OFFSET_WITH_EPOCH),
            4: _flexible(f"{_OFFSET_WITH_EPOCH} #0 topicId:uuid"),
        },
    ),
    2: _RecordType(
        _Message("group:string"),
        {
            0: _members("", _CLIENT),
            1: _members("", _CLIENT, _REBALANCE),
            2: _members(_SINCE, _CLIENT, _REBALANCE),
            3: _members(_SINCE, _INSTANCE, _CLIENT, _REBALANCE),
            4: _members(_SINCE, _INSTANCE, _CLIENT, _REBALANCE, flexible=True),
        },
    ),
    3: _group("epoch:int32 #0 metadataHash:int64"),
    4: _group(
        "topics:[{topicId:uuid topicName:string numPartitions:int32 "
        "partitionMetadata:[{partition:int32 racks:[string]}]}]"
    ),
    5: _of_member(
        f"instanceId:string? rackId:string? {_CLIENT} subscribedTopicNames:[string] "
        "subscribedTopicRegex:string? rebalanceTimeoutMs:int32 serverAssignor:string? "
        "#0 classicMemberMetadata:"
        "{sessionTimeoutMs:int32 supportedProtocols:[{name:string metadata:bytes}]}?"
    ),
    6: _group(_ASSIGNMENT_EPOCH),
    7: _of_member(f"topicPartitions:[{_PARTITIONS}]"),
    8: _of_member(
        "memberEpoch:int32 previousMemberEpoch:int32 state:int8 "
        f"assignedPartitions:[{_ASSIGNED}] partitionsPendingRevocation:[{_ASSIGNED}]"
    ),
    10: _of_member(f"rackId:string? {_CLIENT} subscribedTopicNames:[string]"),
    11: _group("epoch:int32 metadataHash:int64"),
    12: _group(_ASSIGNMENT_EPOCH),
    13: _of_member(f"topicPartitions:[{_PARTITIONS}]"),
    14: _of_member(
        f"memberEpoch:int32 previousMemberEpoch:int32 state:int8 assignedPartitions:[{_PARTITIONS}]"
    ),
    15: _group(
        "initializingTopics:[{topicId:uuid topicName:string partitions:[int32]}] "
        "initializedTopics:[{topicId:uuid topicName:string partitions:[int32]}] "
        "deletingTopics:[{topicId:uuid topicName:string}]"
    ),
    16: _group(
        "topics:[string] version:int64 timestamp:int64", of_member="regularExpression:string"
    ),
    17: _group(
        "epoch:int32 metadataHash:int64 #0 validatedTopologyEpoch:int32=-1 "
        f"#1 lastAssignmentConfigs:{_PAIRS}? #2 storedDescriptionTopologyEpoch:int32=-1 "
        "#3 failedDescriptionTopologyEpoch:int32=-1"
    ),
    19: _of_member(
        f"instanceId:string? rackId:string? {_CLIENT} rebalanceTimeoutMs:int32 "
        "topologyEpoch:int32 processId:string userEndpoint:{host:string port:uint16}? "
        f"clientTags:{_PAIRS}"
    ),
    20: _group(_ASSIGNMENT_EPOCH),
    21: _of_member(f"activeTasks:{_TASKS} standbyTasks:{_TASKS} warmupTasks:{_TASKS}"),
    22: _of_member(
        "memberEpoch:int32 previousMemberEpoch:int32 state:int8 "
        f"activeTasks:{_TASKS_WITH_EPOCHS} standbyTasks:{_TASKS_WITH_EPOCHS} "
        f"warmupTasks:{_TASKS_WITH_EPOCHS} activeTasksPendingRevocation:{_TASKS_WITH_EPOCHS} "
        f"standbyTasksPendingRevocation:{_TASKS_WITH_EPOCHS} "
        f"warmupTasksPendingRevocation:{_TASKS_WITH_EPOCHS}"
    ),
    23: _group(
        "epoch:int32 subtopologies:[{subtopologyId:string sourceTopics:[string] "
        f"sourceTopicRegex:[string] stateChangelogTopics:{_TOPICS_WITH_CONFIGS} "
        f"repartitionSinkTopics:[string] repartitionSourceTopics:{_TOPICS_WITH_CONFIGS} "
        "copartitionGroups:[{sourceTopics:[int16] sourceTopicRegex:[int16] "
        "repartitionSourceTopics:[int16]}]}]"
    ),
}
_TRANSACTION_ENDS = (
    "transactionTimeoutMs:int32 transactionStatus:int8 "
    "transactionPartitions:[{topic:string partitionIds:[int32]}]? "
    "transactionLastUpdateTimestampMs:int64 transactionStartTimestampMs:int64"
)
_TRANSACTION_TYPES = {
    0: _RecordType(
        _Message("transactionalId:string"),
        {
            0: _Message(f"producerId:int64 producerEpoch:int16 {_TRANSACTION_ENDS}"),
            1: _flexible(
                "producerId:int64 #0 previousProducerId:int64=-1 #1 nextProducerId:int64=-1 "
                f"producerEpoch:int16 #3 nextProducerEpoch:int16=-1 {_TRANSACTION_ENDS} "
                "#2 clientTransactionVersion:int16"
            ),
        },
    )
}
# What the members of a group of consumers say and get, by version.
_SUBSCRIPTION = "topics:[string] userData:bytes?"
_OWNED = "ownedPartitions:[{topic:string partitions:[int32]}]"
_SUBSCRIPTIONS = (
    _Message(_SUBSCRIPTION),
    _Message(f"{_SUBSCRIPTION} {_OWNED}"),
    _Message(f"{_SUBSCRIPTION} {_OWNED} generationId:int32"),
    _Message(f"{_SUBSCRIPTION} {_OWNED} generationId:int32 rackId:string?"),
)
_ASSIGNMENTS = (
    _Message("assignedPartitions:[{topic:string partitions:[int32]}] userData:bytes?"),
) * len(_SUBSCRIPTIONS)
_CONSUMERS = "consumer"


def decoder_of(path: Path) -> Decoder | None:
    """Return the decoder for a file, by its directory's topic; None if it needs none."""
    return _BY_TOPIC.get(path.absolute().parent.name.rpartition("-")[0])


def decode_transaction_record(key: bytes, value: bytes | None) -> tuple[Any, Any]:
    """Decode a record of `__transaction_state`. Raises CorruptRecordError, in Kafka's words."""
    if len(key) >= _INT16.size and _INT16.unpack_from(key)[0] >= PRODUCER_ID_BLOCK:
        return _own_record(key, value)
    decoded_key, decoded = _decode(_TRANSACTION_TYPES, key, value)
    if decoded is not None:
        status = decoded["data"]["transactionStatus"]
        is_known = 0 <= status < len(STATE_NAMES)
        decoded["data"]["transactionStatus"] = STATE_NAMES[status] if is_known else str(status)
    return decoded_key, decoded


def decode_offset_record(key: bytes, value: bytes | None) -> tuple[Any, Any]:
    """Decode a record of `__consumer_offsets`. Raises CorruptRecordError, in Kafka's words."""
    decoded_key, decoded = _decode(_OFFSET_TYPES, key, value)
    if decoded is not None and decoded["data"].get("protocolType") == _CONSUMERS:
        for member in decoded["data"]["members"]:
            for name, versions in (
                ("subscription", _SUBSCRIPTIONS),
                ("assignment", _ASSIGNMENTS),
            ):
                member[name] = _of_consumer(member[name], versions)
    return decoded_key, decoded


def _decode(
    types: Mapping[int, _RecordType], key: bytes, value: bytes | None
) -> tuple[Decoded, Decoded | None]:
    number = _version_of(key, "key")
    found = types.get(number)
    if found is None:
        raise CorruptRecordError("", 0, f"{UNKNOWN_TYPE}{number}")
    decoded_key = Decoded(type=str(number), data=_read(found.key, key, number, "key"))
    if value is None:
        return decoded_key, None
    version = _version_of(value, "value")
    message = found.values.get(version)
    if message is None:
        reason = f"Found an unknown record version {version} for {number} type"
        raise CorruptRecordError("", 0, reason)
    return decoded_key, Decoded(version=str(version), data=_read(message, value, version, "value"))


def _version_of(data: bytes, what: str) -> int:
    if len(data) < _INT16.size:
        raise CorruptRecordError("", 0, f"Could not read version from {what}'s buffer.")
    version: int = _INT16.unpack_from(data)[0]
    return version


def _read(message: _Message, data: bytes, version: int, what: str) -> dict[str, Any]:
    try:
        return message.read(data[_INT16.size :])
    except ValueError as error:
        reason = f"Could not read record with version {version} from {what}'s buffer due to"
        raise CorruptRecordError("", 0, f"{reason}: {error}.") from error


def _of_consumer(encoded: str, versions: tuple[_Message, ...]) -> Any:
    """Decode what a client of the group wrote; return it as it is if it is not a consumer's."""
    data = base64.b64decode(encoded)
    try:
        version = max(_version_of(data, "value"), 0)
        return versions[version].read(data[_INT16.size :])
    except (CorruptRecordError, ValueError, IndexError):
        return encoded


def _own_record(key: bytes, value: bytes | None) -> tuple[Any, Any]:
    number = _INT16.unpack_from(key)[0]
    decoded_key = OwnKey(type=number, name=key[_INT16.size :].decode("utf-8", "replace"))
    if value is None:
        return decoded_key, None
    try:
        return decoded_key, Decoded(**loads_json(value))
    except (ValueError, TypeError) as error:
        raise CorruptRecordError("", 0, f"the value is no JSON object: {error}") from error


_BY_TOPIC: dict[str, Decoder] = {
    TRANSACTION_STATE_TOPIC: decode_transaction_record,
    CONSUMER_OFFSETS_TOPIC: decode_offset_record,
}
