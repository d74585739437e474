"""An import that is killed, anywhere, and begun again appends each line once, in order."""

import json
import random
import time

import pytest
from harness.fork import Fork, Kill, dies_in_child
from stores import QUIET, check_nothing_is_open, values_of

import eoslog
from eoslog.exchange import file_progress, text_source, topic_export
from eoslog.producer.producer import Producer
from eoslog.producer.transactional_producer import TransactionalProducer

pytestmark = pytest.mark.crash
VALUES = [b"%06d" % number for number in range(3000)]

# By the steps of docs/files.md.
DEATHS = {
    "I1": Kill(file_progress.ImportTransactions, "progress"),
    "I2": Kill(text_source.TextSource, "begin", when="after"),
    "I3, first": Kill(Producer, "append", when="after"),
    "I3, later": Kill(Producer, "append", nth=20, when="after"),
    "I4": Kill(TransactionalProducer, "send_offsets_to_transaction", nth=3, when="after"),
    "I5, before": Kill(TransactionalProducer, "commit_transaction", nth=3),
    "I5, after": Kill(TransactionalProducer, "commit_transaction", nth=3, when="after"),
    "end": Kill(file_progress.ImportTransactions, "__exit__"),
}


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(text_source, "CHUNK_BYTES", 1024)
    with eoslog.open(tmp_path / "store", create=True, durability="process", config=QUIET) as store:
        store.create_topic("t")
    lines = [json.dumps({"value": value.decode()}) for value in VALUES]
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "store"


def import_it(path, progress=None):
    with eoslog.open(path, config=QUIET) as store:
        return eoslog.import_file(store, "t", path.with_name("x.jsonl"), progress=progress)


def check_all_is_in(path):
    with eoslog.open(path, config=QUIET) as store:
        assert values_of(store, "t") == VALUES
        check_nothing_is_open(store)
        assert store.verify() == []


@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS.keys())
def test_a_death_at_each_step(path, death):
    def die_importing():
        death.arm()
        import_it(path)

    assert dies_in_child(die_importing)
    result = import_it(path)
    assert result.records + result.already_there == len(VALUES)
    check_all_is_in(path)
    assert import_it(path).records == 0


def test_deaths_at_any_moment(path):
    """Half of the runs begin beside another process that has the store open."""
    chosen = random.Random(7)

    def work(fork):
        def progress(done, _):
            fork.say(done)
            fork.wait()

        import_it(path, progress)

    for turn in range(12):
        beside = eoslog.open(path, config=QUIET) if turn % 2 else None
        with Fork(work) as child:
            for _ in range(chosen.randrange(1, 4)):
                child.hear()
                child.tell()
            time.sleep(chosen.random() * 0.004)  # It goes on to its next progress, and waits there.
            assert child.kill()
        if beside is not None:
            found = values_of(beside, "t")
            assert found == VALUES[: len(found)]
            beside.close()
    import_it(path)
    check_all_is_in(path)


def test_imports_of_several_processes_at_once(path):
    """Each fences the one before it; together they import the file once."""
    with Fork(lambda _: many_imports(path)) as first, Fork(lambda _: many_imports(path)) as second:
        first.end()
        second.end()
    import_it(path)
    check_all_is_in(path)


def many_imports(path):
    for _ in range(5):
        try:
            import_it(path)
        except eoslog.errors.ProducerFencedError:
            continue


EXPORT_DEATHS = {
    "in the file": Kill(topic_export, "RecordText"),
    "before the rename": Kill(topic_export.os, "fsync", when="after"),
    "after the rename": Kill(topic_export, "sync_directory"),
}


@pytest.mark.parametrize("death", EXPORT_DEATHS.values(), ids=EXPORT_DEATHS.keys())
def test_a_killed_export_leaves_no_half_file(path, tmp_path, death):
    import_it(path)
    out = tmp_path / "out.jsonl"
    out.write_text("before")

    def die_exporting():
        death.arm()
        with eoslog.open(path, read_only=True) as store:
            eoslog.export_topic(store, "t", out)

    assert dies_in_child(die_exporting)
    is_named = death is EXPORT_DEATHS["after the rename"]
    assert (out.read_text() == "before") is not is_named
    with eoslog.open(path, read_only=True) as store:
        result = eoslog.export_topic(store, "t", out)
    assert (result.records, len(out.read_bytes().splitlines())) == (len(VALUES), len(VALUES))
    assert not out.with_name("out.jsonl.tmp").exists()
