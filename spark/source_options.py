"""Options of the data source: names as in Spark's Kafka source and sink, values checked.

Spark hands over option names in lower case, so names are compared without regard to case. Options
are checked before any task runs: an unknown option is refused, since a typo loses data.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

_log = logging.getLogger(__name__)

BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"
STORE_SCHEME = "eoslog:"
# Who names the store: ours, what `save(path)`, `start(path)` and `load(path)` set, and Kafka's.
STORE_OPTIONS = ("store", "path", BOOTSTRAP_SERVERS)
# What Spark itself puts among the options of a streaming query.
SPARK_OPTIONS = ("checkpointLocation", "queryName")
# Spark gives a table's properties to `schema`, and nothing to the reads and writes of the table.
TABLE_OPTION = "provider"
NO_TABLES = (
    "CREATE TABLE cannot work, since Spark keeps its options from reads and writes: say "
    "CREATE TEMPORARY VIEW name USING eoslog OPTIONS (...)"
)
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)
_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")
# Options of Kafka clients that this process has warned of as ignored.
_ignored: set[str] = set()


def store_path(options: Mapping[str, str]) -> Path:
    """The store that the options name, as an absolute path.

    `store` and `path` are a path or a `file:` URL; `kafka.bootstrap.servers` counts if it begins
    with `eoslog:`, the rest is the path then. Raises ValueError if none of them names a store, or
    two name different ones.
    """
    found = {
        name: as_path(text)
        for name in STORE_OPTIONS
        if (text := _store_text(name, find(options, name))) is not None
    }
    if not found:
        hint = "" if options else f"; {NO_TABLES}"
        raise ValueError(f'no store: say which, .option("store", "/path/of/the/store"){hint}')
    first, *others = found.values()
    if not all(_is_same(first, other) for other in others):
        names = ", ".join(f"{name}={path}" for name, path in found.items())
        raise ValueError(f"options name different stores: {names}")
    return first


def _is_same(path: Path, other: Path) -> bool:
    """Return True if two paths lead to one directory, or are the same text where there is none."""
    try:
        return path.samefile(other)
    except OSError:
        return path == other


def _store_text(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    if name == BOOTSTRAP_SERVERS:
        if not value.startswith(STORE_SCHEME):
            return None  # Real brokers; `check_options` says that they are ignored.
        value = "file:" + value.removeprefix(STORE_SCHEME)
    if not value.removeprefix("file:"):
        raise ValueError(f"option {name} must be a store's path, got an empty one")
    return value


def as_path(text: str) -> Path:
    """The absolute path that a path or a `file:` URL names. Raises ValueError for another host."""
    if text.startswith("file:"):
        rest = text.removeprefix("file:")
        if rest.startswith("//"):
            url = urlsplit(text)
            if url.netloc not in ("", "localhost"):
                raise ValueError(f"{text} must be a path of this host")
            rest = text.split("//", 1)[1].removeprefix(url.netloc)
        text = rest
    return Path(text).absolute()


def check_options(options: Mapping[str, str], known: frozenset[str], use: str) -> None:
    """Raise ValueError for an option that is not in `known`, naming the nearest one that is.

    `known` holds names as the documentation spells them, without those of the store and of Spark;
    `use` is what the options are for, as in "batch write". Options of Kafka clients (`kafka.*`)
    that are not known have no meaning here: each is logged as a warning once, and ignored.
    """
    names = {name.lower(): name for name in (*known, *STORE_OPTIONS, *SPARK_OPTIONS)}
    brokers = find(options, BOOTSTRAP_SERVERS)
    if brokers is not None and not brokers.startswith(STORE_SCHEME):
        _warn_ignored(BOOTSTRAP_SERVERS)
    for name in options:
        if name.lower() in names:
            continue
        if name.lower().startswith("kafka."):
            _warn_ignored(name.lower())
            continue
        near = get_close_matches(name.lower(), names, n=1)
        hint = f"did you mean {names[near[0]]}?" if near else f"known are {_listed(known)}"
        raise ValueError(f"option {name} is unknown to eoslog's {use}: {hint}")


def _warn_ignored(name: str) -> None:
    if name not in _ignored:
        _ignored.add(name)
        _log.warning("option %s is for Kafka clients: an eoslog store has no use for it", name)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted({*names, "store"}, key=str.lower))


def find(options: Mapping[str, str], name: str) -> str | None:
    """The value of an option, whatever the case of its name; None if it is not there."""
    wanted = name.lower()
    for given, value in options.items():
        if given.lower() == wanted:
            return value
    return None


def text(options: Mapping[str, str], name: str) -> str | None:
    """An option's text, None if it is not there. Raises ValueError if it is empty."""
    value = find(options, name)
    if value is not None and not value.strip():
        raise ValueError(f"option {name} is empty")
    return value


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """An option that is true or false, in any case. Raises ValueError for anything else."""
    value = find(options, name)
    if value is None:
        return default
    folded = value.strip().lower()
    if folded not in _TRUE + _FALSE:
        raise ValueError(f"option {name} must be true or false, got {value!r}")
    return folded in _TRUE


def whole(options: Mapping[str, str], name: str, default: int, minimum: int) -> int:
    """Return an option that is an integer, `minimum` at least and below 2**63.

    Raises ValueError for anything else.
    """
    value = find(options, name)
    if value is None:
        return default
    if not _WHOLE.fullmatch(value):
        raise ValueError(f"option {name} must be an integer, got {value!r:.80}")
    number = int(value)
    if number < minimum:
        raise ValueError(f"option {name} must be at least {minimum}, got {number}")
    if number >= 1 << 63:
        raise ValueError(f"option {name} must be below 2**63, got {value:.80}")
    return number
