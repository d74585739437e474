"""Partitions of internal topics whose directories are gone, as their control pages tell.

Nobody ever deletes such a partition, and its page outlives its directory. A page says up to where
the log had been synced; so it tells also where the store stopped before its first checkpoint.
"""

from eoslog.bindings.control_state import control_state, synced_before
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.store_paths import StorePaths


def synced_by_page_alone(paths: StorePaths, where: TopicPartition) -> int:
    """Return up to where a page says that its log had been synced, for any topic it was made for; 0
    if it says nothing.
    """
    page = str(paths.control(where))
    with named_os_errors(f"looking at {page}"):
        state = control_state(page)
        return 0 if state is None else synced_before(page, state.topic_id)


def lost_by_pages(paths: StorePaths) -> dict[TopicPartition, int]:
    """The partitions without a directory of which something had been synced, and up to where."""
    found = {}
    with named_os_errors(f"looking at {paths.controls}"):
        names = sorted(path.name for path in paths.controls.glob("__*"))
    for name in names:
        try:
            where = TopicPartition.parse(name)
        except ValueError:
            continue
        if where.topic in INTERNAL_TOPICS and not paths.partition(where).is_dir():
            offset = synced_by_page_alone(paths, where)
            if offset:
                found[where] = offset
    return found
