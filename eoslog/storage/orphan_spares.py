"""Spare files of partitions that are not there any more.

Deleting a topic removes them, but where nothing is synced a power cut may bring them back: files as
large as segments, with nothing in them that anybody needs. A clean close leaves none.
"""

import logging

from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.file_tree import remove_directory
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.store_paths import StorePaths
from eoslog.storage.topic_registry import TopicRegistry

_log = logging.getLogger(__name__)


def remove_orphan_spares(paths: StorePaths, registry: TopicRegistry) -> None:
    """Remove them; nobody else has the store open. What cannot be removed is left, and logged."""
    with named_os_errors(f"reading {paths.spares}"):
        found = list(paths.spares.iterdir()) if paths.spares.is_dir() else []
    known = {
        where
        for topic in (*registry.all(), *registry.deleting())
        for where in topic.topic_partitions()
    }
    for path in found:
        try:
            where = TopicPartition.parse(path.name)
        except ValueError:
            continue  # Nothing of ours.
        if where in known:
            continue
        try:
            remove_directory(path)
        except OSError as error:
            _log.warning("%s, of a topic that was deleted, is left there: %s", path, error)
