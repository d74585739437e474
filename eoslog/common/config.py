"""Settings under Kafka's own names: which exist, their types, ranges and defaults.

Every setting named here does what it says. One of Kafka's that this version does not carry out is
refused by name, unless it is given the one value that describes what eoslog does anyway. A name
that Kafka does not know either is refused with the nearest name that exists.
"""

from collections.abc import Mapping
from typing import NamedTuple

from eoslog.errors import InvalidConfigError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# In a setting that limits how long or how much is kept: no limit.
NO_LIMIT = -1
CLEANUP_POLICY = "cleanup.policy"
MESSAGE_BYTES = "max.message.bytes"
SESSION_TIMEOUT_MS = 45_000
MAX_POLL_INTERVAL_MS = 300_000

ConfigValue = int | str | bool


class Setting(NamedTuple):
    """One setting: its type is its default's; a number has a range, a text a set of choices."""

    name: str
    default: ConfigValue
    smallest: int = 0
    largest: int = INT64_MAX
    choices: tuple[str, ...] = ()
    unlimited: bool = False  # It may also be NO_LIMIT.

    def parse(self, value: object) -> ConfigValue:
        """The value in the setting's type; numbers and truth values may come as text, as in Kafka.

        Raises InvalidConfigError.
        """
        if isinstance(self.default, bool):
            return self._parse_bool(value)
        if isinstance(self.default, int):
            return self._parse_int(value)
        if not isinstance(value, str) or value not in self.choices:
            raise InvalidConfigError(
                f"{self.name} must be one of {', '.join(self.choices)}, got {value!r}"
            )
        return value

    def _parse_bool(self, value: object) -> bool:
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if not isinstance(value, bool):
            raise InvalidConfigError(f"{self.name} must be true or false, got {value!r}")
        return value

    def _parse_int(self, value: object) -> int:
        number = value
        if isinstance(number, str):
            try:
                number = int(number)
            except ValueError as error:
                raise InvalidConfigError(f"{self.name} must be an int, got {value!r}") from error
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidConfigError(f"{self.name} must be an int, got {value!r}")
        is_limit = self.smallest <= number <= self.largest
        if not is_limit and not (self.unlimited and number == NO_LIMIT):
            hint = f", or {NO_LIMIT} for no limit" if self.unlimited else ""
            raise InvalidConfigError(
                f"{self.name} must be from {self.smallest} to {self.largest}{hint}, got {number}"
            )
        return number


def _by_name(*settings: Setting) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}


TOPIC_SETTINGS = _by_name(
    Setting("segment.bytes", 1 << 30, smallest=1 << 10, largest=INT32_MAX),
    Setting("segment.ms", 604_800_000, smallest=1),
    Setting("segment.index.bytes", 10_485_760, smallest=48, largest=INT32_MAX),
    Setting("index.interval.bytes", 4096, largest=INT32_MAX),
    Setting(MESSAGE_BYTES, 1_048_588, smallest=128, largest=INT32_MAX),
    # Kafka's default is 7 days. An embedded store keeps what it was given.
    Setting("retention.ms", NO_LIMIT, unlimited=True),
    Setting("retention.bytes", NO_LIMIT, unlimited=True),
    Setting("message.timestamp.before.max.ms", INT64_MAX),
    Setting("message.timestamp.after.max.ms", INT64_MAX),
    # Of topics that come from Kafka. What was compacted there is read; nothing is compacted here.
    Setting(
        CLEANUP_POLICY, "delete", choices=("delete", "compact", "compact,delete", "delete,compact")
    ),
)

# The names under which Kafka's brokers know the defaults of the topics' settings.
BROKER_NAMES = {
    "log.segment.bytes": "segment.bytes",
    "log.roll.ms": "segment.ms",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.index.interval.bytes": "index.interval.bytes",
    "message.max.bytes": MESSAGE_BYTES,
    "log.retention.ms": "retention.ms",
    "log.retention.bytes": "retention.bytes",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
}

STORE_SETTINGS = _by_name(
    Setting("producer.id.expiration.ms", 86_400_000, smallest=1),
    Setting("producer.id.expiration.check.interval.ms", 600_000, smallest=1),
    Setting("log.retention.check.interval.ms", 300_000, smallest=1),
    Setting("log.flush.offset.checkpoint.interval.ms", 60_000, smallest=1),
    Setting("log.initial.task.delay.ms", 30_000),
    Setting("transaction.max.timeout.ms", 900_000, smallest=1, largest=INT32_MAX),
    Setting("transactional.id.expiration.ms", 604_800_000, smallest=1),
    # Kafka's default is 10 s; a look costs next to nothing here.
    Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", 1_000, smallest=1),
    Setting("transaction.remove.expired.transaction.cleanup.interval.ms", 3_600_000, smallest=1),
    # Kafka's default is 7 days. A group that lost its offsets reads all records again, or none.
    Setting("offsets.retention.minutes", NO_LIMIT, 1, INT32_MAX, unlimited=True),
    Setting("offsets.retention.check.interval.ms", 600_000, smallest=1),
    Setting("offset.metadata.max.bytes", 4096, largest=INT32_MAX),
    # eoslog's own. How often changed producer rows go to LMDB:
    Setting("eoslog.checkpoint.interval.ms", 5_000, smallest=1),
    # ... at the latest after so many appended bytes of a partition:
    Setting("eoslog.checkpoint.bytes", 256 << 20, smallest=1),
    # ... how many producers a partition keeps in memory:
    Setting("eoslog.producers.cached.max", 100_000, smallest=1, largest=INT32_MAX),
    # ... the size of a half of the commit journal; without a limit it grows as it is needed:
    Setting("eoslog.journal.bytes", NO_LIMIT, largest=1 << 30, unlimited=True),
    # ... if the process may have as many files open as its hard limit allows:
    Setting("eoslog.open.files.raise", True),
    # ... how many segment files each partition keeps for reuse:
    Setting("eoslog.spare.segments", 1, largest=64),
    # ... if the group of the store's directory may read it:
    Setting("eoslog.group.readable", False),
    # ... and after what time uncommitted staged files are swept.
    Setting("eoslog.staging.retention.ms", 604_800_000, smallest=0),
)

# What `eoslog.open` takes: also the defaults of the store's topics.
OPENING_SETTINGS = STORE_SETTINGS | {
    broker_name: TOPIC_SETTINGS[name] for broker_name, name in BROKER_NAMES.items()
}

PRODUCER_SETTINGS = _by_name(
    Setting("batch.size", 16_384, smallest=1, largest=INT32_MAX),
    Setting("linger.ms", 5, largest=INT32_MAX),
    Setting("enable.idempotence", True),
)

# A transactional producer has no linger: its records are not visible before the commit. So no
# reader waits for a batch of it either.
TRANSACTIONAL_PRODUCER_SETTINGS = _by_name(
    Setting("batch.size", 262_144, smallest=1, largest=INT32_MAX),
    PRODUCER_SETTINGS["enable.idempotence"],
    Setting("transaction.timeout.ms", 60_000, smallest=1, largest=INT32_MAX),
)

CONSUMER_SETTINGS = _by_name(
    Setting("max.poll.records", 500, smallest=1, largest=INT32_MAX),
    Setting("max.poll.interval.ms", MAX_POLL_INTERVAL_MS, smallest=1, largest=INT32_MAX),
    Setting("fetch.max.bytes", 52_428_800, smallest=1, largest=INT32_MAX),
    Setting("max.partition.fetch.bytes", 1_048_576, smallest=1, largest=INT32_MAX),
    Setting("isolation.level", "", choices=("read_committed", "read_uncommitted")),
    Setting("auto.offset.reset", "", choices=("earliest", "latest", "none")),
)

# Only beside a group.instance.id: another member's session ends with its process.
SESSION_TIMEOUT = Setting("session.timeout.ms", SESSION_TIMEOUT_MS, smallest=1, largest=INT32_MAX)

# Kafka's settings that are not carried out, each with the values that describe what is done anyway.
_FIXED: dict[str, tuple[str, ...]] = {
    "compression.type": ("producer", "none"),
    "delete.retention.ms": (),
    "file.delete.delay.ms": (),
    "flush.messages": (str(INT64_MAX),),
    "flush.ms": (str(INT64_MAX),),
    "max.compaction.lag.ms": (str(INT64_MAX),),
    "message.timestamp.type": ("CreateTime",),
    "min.cleanable.dirty.ratio": (),
    "min.compaction.lag.ms": ("0",),
    "min.insync.replicas": ("1",),
    "preallocate": (),
    "segment.jitter.ms": ("0",),
    "unclean.leader.election.enable": ("false",),
    "acks": ("all", "-1"),
    "buffer.memory": (),
    "max.in.flight.requests.per.connection": ("1", "2", "3", "4", "5"),
    "max.request.size": (),
    "enable.auto.commit": ("false",),
    "auto.commit.interval.ms": (),
    # A member lives as long as its process, whose death is known at once.
    "session.timeout.ms": (),
    "heartbeat.interval.ms": (),
    "group.protocol": ("classic",),
}

_NO_AUTO_COMMIT = (
    "a timer would commit records that are still at work, which a crash then loses, and leave out "
    "some that are done, which are done twice. Call commit() after the work, or use "
    "read_process_write, which commits the output and the offsets together"
)
# Why, for those that programs are used to.
_REASONS = {
    "enable.auto.commit": _NO_AUTO_COMMIT,
    "auto.commit.interval.ms": _NO_AUTO_COMMIT,
    "session.timeout.ms": (
        "the death of a member is seen at once; only beside a group.instance.id it says for how "
        "long the member's place is kept"
    ),
}

NO_SERVER = "a store is a directory, which eoslog.open takes: there are no servers"
BYTES = "keys and values are bytes: encode and decode them yourself"
# Settings of other clients that something else stands for.
_INSTEAD = {
    "bootstrap.servers": NO_SERVER,
    "metadata.broker.list": NO_SERVER,
    "security.protocol": NO_SERVER,
    "group.id": "group=... of store.consumer",
    "key.serializer": BYTES,
    "value.serializer": BYTES,
    "key.deserializer": BYTES,
    "value.deserializer": BYTES,
}


# Whose setting a name is that was given to another.
_OWNERS: Mapping[str, Mapping[str, Setting]] = {
    "topic": TOPIC_SETTINGS,
    "store": STORE_SETTINGS,
    "producer": PRODUCER_SETTINGS,
    "transactional producer": TRANSACTIONAL_PRODUCER_SETTINGS,
    "consumer": CONSUMER_SETTINGS,
}


def parse_config(
    given: Mapping[str, object] | None, settings: Mapping[str, Setting], what: str
) -> dict[str, ConfigValue]:
    """Check the given settings and return them in their own types, without the defaults.

    `what` names the owner for messages: "topic", "store". Raises InvalidConfigError.
    """
    parsed: dict[str, ConfigValue] = {}
    if given is not None and not isinstance(given, Mapping):
        raise _no_mapping(given, what)
    for name, value in (given or {}).items():
        if name in settings:
            parsed[name] = settings[name].parse(value)
        elif name in _FIXED:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if text not in _FIXED[name]:
                allowed = " or ".join(_FIXED[name])
                hint = f"; only {allowed} describes it" if allowed else ""
                if name in _REASONS:
                    hint += f": {_REASONS[name]}"
                raise InvalidConfigError(
                    f"{name}={value!r}: this version does not support Kafka's setting{hint}"
                )
        else:
            raise InvalidConfigError(_unknown_name(name, settings, what))
    return parsed


def _no_mapping(given: object, what: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"{what} config must be a mapping of names to values, got {type(given).__name__}"
    )


def with_defaults(
    parsed: Mapping[str, ConfigValue], settings: Mapping[str, Setting]
) -> dict[str, ConfigValue]:
    """The parsed settings, and every other one's default."""
    return {name: parsed.get(name, setting.default) for name, setting in settings.items()}


def parse_store_config(
    given: Mapping[str, object] | None,
) -> tuple[dict[str, int], dict[str, int]]:
    """Split what `open` was given into the store's settings and defaults for its topics' settings.

    The store's come back complete; the topics' only as far as given, under the topics' names.
    """
    parsed = parse_config(given, OPENING_SETTINGS, "store")
    store = with_defaults(parsed, STORE_SETTINGS)
    return {name: int(value) for name, value in store.items()}, topic_defaults_of(parsed)


def topic_defaults_of(parsed: Mapping[str, ConfigValue]) -> dict[str, int]:
    """The defaults of topics among a store's settings, under the topics' names."""
    return {
        BROKER_NAMES[name]: int(value) for name, value in parsed.items() if name in BROKER_NAMES
    }


def parse_topic_config(
    given: Mapping[str, object] | None, *, may_compact: bool = False
) -> dict[str, int | str]:
    """The settings a topic is created with, in their own types, without the defaults.

    Raises InvalidConfigError, also for compaction, unless the topic comes from Kafka.
    """
    parsed = parse_config(given, TOPIC_SETTINGS, "topic")
    policy = str(parsed.get(CLEANUP_POLICY, ""))
    if "compact" in policy and not may_compact:
        raise InvalidConfigError(
            f"{CLEANUP_POLICY}={policy!r} is not supported: only internal topics are compacted"
        )
    _check_fits_segment(parsed)
    return parsed


def altered_config(
    current: Mapping[str, ConfigValue],
    given: object,
    settings: Mapping[str, Setting],
    what: str,
) -> dict[str, ConfigValue]:
    """Return settings after a change, without defaults: None as a value takes the default again.

    `what` as in `parse_config`. Raises InvalidConfigError.
    """
    if not isinstance(given, Mapping):
        raise _no_mapping(given, what)
    for name, value in given.items():
        if value is None and name not in current and name not in settings:
            raise InvalidConfigError(_unknown_name(name, settings, what))
    kept = {name: value for name, value in current.items() if name not in given}
    changed = {name: value for name, value in given.items() if value is not None}
    return kept | parse_config(changed, settings, what)


def altered_topic_config(
    current: Mapping[str, int | str], given: Mapping[str, object]
) -> dict[str, int | str]:
    """The settings of a topic after a change, as `altered_config` has it.

    Raises InvalidConfigError, also for another `cleanup.policy`: where Kafka compacted, it says
    which missing offsets are no loss.
    """
    altered = altered_config(current, given, TOPIC_SETTINGS, "topic")
    default = TOPIC_SETTINGS[CLEANUP_POLICY].default
    before, after = (one.get(CLEANUP_POLICY, default) for one in (current, altered))
    if before != after:
        raise InvalidConfigError(
            f"{CLEANUP_POLICY} cannot be altered: it is {before!r}, not {after!r}"
        )
    if {MESSAGE_BYTES, "segment.bytes"} & given.keys():
        _check_fits_segment(altered)
    return altered


def settings_text(config: Mapping[str, ConfigValue]) -> str:
    """Return settings for a log line, each after a comma; no text if there are none."""
    return "".join(f", {name}={value}" for name, value in sorted(config.items()))


def _check_fits_segment(config: Mapping[str, ConfigValue]) -> None:
    segment_bytes = config.get("segment.bytes", TOPIC_SETTINGS["segment.bytes"].default)
    message_bytes = config.get(MESSAGE_BYTES)
    if message_bytes is not None and int(message_bytes) > int(segment_bytes):
        raise InvalidConfigError(
            f"{MESSAGE_BYTES}={message_bytes} is above segment.bytes={segment_bytes}"
        )


def parse_kafka_topic_config(given: Mapping[str, object]) -> dict[str, int | str]:
    """The settings of a topic that comes from Kafka, in their own types, without the defaults.

    Those that eoslog does not carry out are kept as text. Raises InvalidConfigError for a value
    that a topic cannot have here. A record may be allowed to be larger than a segment, as in Kafka:
    the smaller of the two counts.
    """
    own = {name: value for name, value in given.items() if name in TOPIC_SETTINGS}
    parsed = parse_config(own, TOPIC_SETTINGS, "topic")
    for name, value in given.items():
        if name not in own:
            if not isinstance(value, str):
                raise InvalidConfigError(f"{name} must be a str, got {value!r}")
            parsed[name] = value
    return parsed


def kept_for_kafka(config: Mapping[str, ConfigValue]) -> dict[str, str]:
    """The settings of a topic that are kept for an export, and have no effect."""
    return {name: str(value) for name, value in config.items() if name not in TOPIC_SETTINGS}


def _unknown_name(name: object, settings: Mapping[str, Setting], what: str) -> str:
    if not isinstance(name, str):
        return f"the name of a {what} setting must be a str, got {type(name).__name__}"
    owner = next((owner for owner, owned in _OWNERS.items() if name in owned), None)
    if owner is not None:
        return f"{name!r} is no {what} setting: it is one of a {owner}"
    if name in _INSTEAD:
        return f"{name!r} is no {what} setting; in eoslog: {_INSTEAD[name]}"
    import difflib  # For the error alone.

    nearest = difflib.get_close_matches(name, settings, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"{name!r} is no {what} setting{hint}"
