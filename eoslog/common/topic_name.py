"""Kafka's rules for the names of topics, and the names that the store keeps for itself."""

import re

from eoslog.errors import InvalidTopicError

TOPIC_NAME_CHARACTERS_MAX = 249
TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC})
# No topic may have this name: groups have the versions of staged jobs under it.
VERSION_TOPIC = "eoslog-version"

_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError, saying why, if Kafka would refuse the name; TypeError if no text."""
    if not isinstance(name, str):
        raise TypeError(f"topic name must be a str, got {type(name).__name__}")
    if not name:
        raise InvalidTopicError("a topic name must not be empty")
    if name in (".", ".."):
        raise InvalidTopicError(f"a topic cannot be named {name!r}")
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        raise InvalidTopicError(
            f"topic name must have at most {TOPIC_NAME_CHARACTERS_MAX} characters, got {len(name)}"
        )
    if _ALLOWED.fullmatch(name) is None:
        wrong = next(character for character in name if not _ALLOWED.fullmatch(character))
        raise InvalidTopicError(
            f"topic name {name!r} holds {wrong!r}; allowed are a-z, A-Z, 0-9, '.', '_' and '-'"
        )


def check_user_topic_name(name: str) -> None:
    """Check the name of a topic of users: refuse the names of internal topics too."""
    check_topic_name(name)
    if name in INTERNAL_TOPICS:
        raise InvalidTopicError(f"{name!r} is an internal topic of the store")


def folded_name(name: str) -> str:
    """Return the name with "_" for ".", as Kafka's metrics write it: topics of which it is the same
    collide there.
    """
    return name.replace(".", "_")
