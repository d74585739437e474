"""Settings that a store remembers: its durability, and its own settings and defaults of topics.

`state/settings.json` is written before `meta.properties` makes the directory a store, with what the
creator gave; `Store.alter_config` replaces it. A store of version 0.1.0 has none. What the group
may do is not in it: the modes say that (`group_access`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from eoslog.bindings.record_batch import crc32c
from eoslog.common.config import (
    OPENING_SETTINGS,
    ConfigValue,
    altered_config,
    parse_config,
    settings_text,
)
from eoslog.common.durability import Durability, check_durability
from eoslog.common.json_text import loads_json
from eoslog.errors import CorruptRecordError, InvalidConfigError, StoreVersionError
from eoslog.fs.atomic_file import read_if_there, write_atomically
from eoslog.session.group_access import SETTING as GROUP_SETTING
from eoslog.session.group_access import group_reads

FILE_NAME = "settings.json"
VERSION = 1


class StoreSettings(NamedTuple):
    """Durability and settings that hold where an opening gives none. `config` has no defaults."""

    durability: Durability = "commit"
    config: Mapping[str, ConfigValue] = MappingProxyType({})

    def __str__(self) -> str:
        return f"durability={self.durability}{settings_text(self.config)}"

    def altered(
        self, config: Mapping[str, object], durability: Durability | None
    ) -> "StoreSettings":
        """Return these after a change, as `altered_config` has it. Raises InvalidConfigError."""
        altered = altered_config(self.config, config, OPENING_SETTINGS, "store")
        return StoreSettings(durability or self.durability, MappingProxyType(altered))


def read_settings(state_path: Path) -> StoreSettings:
    """Read what the store remembers; the defaults if it has no such file.

    Raises CorruptRecordError, or StoreVersionError if another version wrote it.
    """
    own = _without_access(_read_file(state_path / FILE_NAME))
    if not group_reads(state_path):
        return own
    return StoreSettings(own.durability, MappingProxyType({**own.config, GROUP_SETTING: True}))


def _without_access(settings: StoreSettings) -> StoreSettings:
    config = {name: value for name, value in settings.config.items() if name != GROUP_SETTING}
    return StoreSettings(settings.durability, MappingProxyType(config))


def _read_file(path: Path) -> StoreSettings:
    content = read_if_there(path)
    if content is None:
        return StoreSettings()
    try:
        found = loads_json(content)
        version = found["version"]
        if version != VERSION:
            raise StoreVersionError(f"{path}: version {version}, not {VERSION}")
        remembered = found["remembered"]
        settings = StoreSettings(
            check_durability(remembered["durability"]),
            MappingProxyType(parse_config(remembered["config"], OPENING_SETTINGS, "store")),
        )
        checksum = found["crc32c"]
    except (ValueError, KeyError, TypeError, InvalidConfigError) as error:
        raise _damaged(path, repr(error)) from error
    if checksum != crc32c(_text(remembered)):
        raise _damaged(path, "it does not match its checksum")
    return settings


def _damaged(path: Path, why: str) -> CorruptRecordError:
    reason = f"not the store's settings ({why}): remove it, and give them to `eoslog config` again"
    return CorruptRecordError(str(path), 0, reason)


def write_settings(state_path: Path, settings: StoreSettings) -> None:
    """Replace what the store remembers, durably, but for the group's access. Raises StoreError; it
    is as it was then.
    """
    settings = _without_access(settings)
    remembered = {"durability": settings.durability, "config": dict(settings.config)}
    document = {"version": VERSION, "crc32c": crc32c(_text(remembered)), "remembered": remembered}
    write_atomically(state_path / FILE_NAME, json.dumps(document).encode())


def _text(remembered: object) -> bytes:
    return json.dumps(remembered, sort_keys=True).encode()
