"""Jobs that nobody gave a name leave no group behind, and share a partition of the state."""

from __future__ import annotations

from pathlib import Path

import eoslog
from eoslog import TopicPartition
from eoslog.staging.names import is_nameless, new_nameless_job
from eoslog.staging.writer import StagedWriter
from eoslog.store.store import parts_of
from eoslog.transactions.state_key import state_partition_of


def test_names_differ_and_are_known_as_such():
    names = {new_nameless_job() for _ in range(20)}
    assert len(names) == 20
    assert all(is_nameless(name) for name in names)
    assert len({state_partition_of(name) for name in names}) == 1


def test_a_name_that_somebody_gave_is_none():
    name = new_nameless_job()
    for given in (
        "job-7",
        "nightly",
        name.upper(),
        f"{name}0",
        f"my-{name}",
        name[:-1],
        f"{name}\n",
    ):
        assert not is_nameless(given)


def test_a_job_without_a_name_is_no_group_even_after_a_kill(tmp_path: Path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("rows")
        for app_id in (new_nameless_job(), "nightly"):
            writer = StagedWriter(
                path, app_id, "run", "0", partitions={"rows": 1}, durability="process"
            )
            writer.append("rows", None, [b"row"])
            message = writer.close()
            assert store.commit_staged(app_id, 0, [message]).committed
            assert not store.commit_staged(app_id, 0, [message]).committed
        assert set(store.groups()) == {"nightly"}
        parts_of(store).staged.renew_groups()  # As after an unclean stop.
        assert set(store.groups()) == {"nightly"}
        assert store.consumer().end_offsets([TopicPartition("rows", 0)]) == {
            TopicPartition("rows", 0): 2
        }
