"""A directory becomes a store, or is known to be one: `meta.properties`, the locks, the session.

A new store is locked before its `meta.properties` is written, so that two processes that create it
at once do not both do so. A creation cut short leaves `state/` with the locks and the settings at
most: that still counts as an empty directory.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from eoslog.common.config import ConfigValue
from eoslog.common.durability import REMEMBERED, Durability, Remembered
from eoslog.errors import InvalidConfigError, NotAStoreError, StoreInUseError
from eoslog.fs.atomic_file import TEMPORARY_SUFFIX, sync_directory
from eoslog.fs.file_system import mount_of
from eoslog.fs.identity_files import (
    META_PROPERTIES,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories, make_outer_directories
from eoslog.session import store_session
from eoslog.session.group_access import NOT_OURS, SETTING, group_reads, set_group_access
from eoslog.session.lock import FILE_NAME as LOCK_NAME
from eoslog.session.lock import OPENING_FILE_NAME, StoreLock
from eoslog.session.paths import STATE_DIRECTORY, StorePaths
from eoslog.session.settings import FILE_NAME as SETTINGS_NAME
from eoslog.session.settings import StoreSettings, write_settings
from eoslog.session.store_session import StoreSession

# Of directories above a new store that are missing: as the store itself, by the setting.
_OUTER_MODES = (0o700, 0o750)
# What a creation makes in `state/` before the directory is a store.
_OF_A_BEGINNING = {
    *(LOCK_NAME, OPENING_FILE_NAME),
    *(SETTINGS_NAME, SETTINGS_NAME + TEMPORARY_SUFFIX),
}


def enter_store(
    paths: StorePaths,
    create: bool,
    durability: Durability | Remembered | None,
    config: Mapping[str, ConfigValue],
    remembered: StoreSettings,
    on_fork: Callable[[], None],
) -> tuple[StoreSession, MetaProperties]:
    """Take part in the store's session, or begin one; `create` makes an empty or absent directory
    a store.

    Until `StoreSession.opened` no other process opens or closes it. The default of `durability`
    is the session's, or the remembered one; what is given goes before what is remembered, and a new
    store remembers it. `on_fork` is called in the child of every fork from now on.

    Raises NotAStoreError, StoreVersionError, StoreInUseError, StoreFullError, StoreReadOnlyError,
    StoreFailedError or InvalidConfigError; the directory is then as it was.
    """
    with named_os_errors(f"opening {paths.root}"):
        exists = (paths.root / META_PROPERTIES).exists()
    if exists:
        read_meta_properties(paths.root)
        with named_os_errors(f"opening {paths.root}"):
            make_directories(paths.state)
    else:
        _check_may_create(paths.root, create)
        _make_directories(paths, _OUTER_MODES[bool(config.get(SETTING))])
    mount = mount_of(paths.state)
    try:
        lock = StoreLock(paths.state, on_fork, joining=store_session.JOINING and not mount.network)
    except StoreInUseError as error:
        if mount.network:
            error.add_note(f"on {mount} one process at a time has a store open")
        raise
    try:
        # Another process may have been faster: its store is then used as it is.
        if not exists and not (paths.root / META_PROPERTIES).exists():
            readable = bool(config.get(SETTING))
            # Another creation may have been cut short.
            if readable or group_reads(paths.state):
                set_group_access(paths, readable)
            given = None if durability == REMEMBERED else durability
            remembered = StoreSettings(given or "commit", config)
            write_settings(paths.state, remembered)
            write_meta_properties(paths.root, MetaProperties.new())
        with named_os_errors(f"opening {paths.root}"):
            # On the disk with the first list of topics, like all that is in `state` then.
            make_directories(paths.controls)
        identity = read_meta_properties(paths.root)
        if SETTING in config:
            _check_access(paths, bool(config[SETTING]))
        return StoreSession(paths, lock, mount, durability, config, remembered), identity
    except BaseException:
        lock.release()
        raise


def _check_way(root: Path) -> None:
    """Raise NotAStoreError if a part of the path is there, and is no directory."""
    for path in (root, *root.parents):
        if path.is_dir():
            return
        if path.is_symlink() or path.exists():
            raise NotAStoreError(f"{root} cannot be made: {path} is not a directory")


def _check_access(paths: StorePaths, readable: bool) -> None:
    """Raise InvalidConfigError if the store has another access than an opening asks for."""
    if group_reads(paths.state) != readable:
        raise InvalidConfigError(
            f"{SETTING}={readable}: it is {not readable} for {paths.root}, for all processes; "
            "`eoslog config` and alter_config change it"
        )


def _make_directories(paths: StorePaths, outer_mode: int) -> None:
    with named_os_errors(f"creating {paths.root}"):
        made = [path for path in (paths.root, *paths.root.parents) if not path.exists()]
        make_outer_directories(paths.root, outer_mode)
        make_directories(paths.state)
        for path in made:
            sync_directory(path.parent)


def why_no_store(root: Path) -> str:
    """Return what a path without a store lacks."""
    return f"it has no {META_PROPERTIES}" if root.exists() else "there is no such directory"


def _check_may_create(root: Path, create: bool) -> None:
    if root.exists() and not root.is_dir():
        raise NotAStoreError(f"{root} is not a directory")
    if not create:
        raise NotAStoreError(f"{root} is not a store: {why_no_store(root)}")
    with named_os_errors(f"creating {root}"):
        _check_way(root)
    if root.exists():
        with named_os_errors(f"reading {root}"):
            foreign = sorted(path.name for path in root.iterdir() if not _of_a_beginning(path))
            # Another process may just have made the store; its mark is there before all else.
            if (root / META_PROPERTIES).exists():
                return
        if foreign:
            raise NotAStoreError(
                f"{root} is not a store and not empty: it holds {foreign[0]!r}"
                + (f" and {len(foreign) - 1} more" if len(foreign) > 1 else "")
            )


def _of_a_beginning(path: Path) -> bool:
    """True if a creation that was cut short may have left this."""
    if path.name == STATE_DIRECTORY and path.is_dir():
        return {entry.name for entry in path.iterdir()} <= _OF_A_BEGINNING
    return path.name == META_PROPERTIES + TEMPORARY_SUFFIX or path.name in NOT_OURS
