"""What `eoslog` offers: each name, and what an import costs."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
import eoslog.aio


def test_public_names_are_pinned_and_load_when_asked_for():
    assert (
        dir(eoslog)
        == sorted(eoslog.__all__)
        == [
            "AbortedTransaction",
            "AppendResult",
            "ApplicationState",
            "Consumer",
            "ConsumerGroupMetadata",
            "DeletableRecords",
            "FileImport",
            "GroupDescription",
            "HangingTransaction",
            "KafkaExport",
            "KafkaImport",
            "LastStableOffset",
            "LogDirectory",
            "MemberDescription",
            "OffsetAndMetadata",
            "OffsetAndTimestamp",
            "OpenTransaction",
            "Partition",
            "PreparedTransaction",
            "Producer",
            "ProducerState",
            "Record",
            "RecordMetadata",
            "Scan",
            "StagedCommit",
            "StagedFile",
            "StagedMessage",
            "StagedWriter",
            "Store",
            "StoreBackup",
            "StoreCollector",
            "StoreRestore",
            "TopicDescription",
            "TopicExport",
            "TopicPartition",
            "TransactionDescription",
            "TransactionListing",
            "TransactionalProducer",
            "__version__",
            "errors",
            "export_kafka",
            "export_topic",
            "import_file",
            "import_kafka",
            "open",
            "read_process_write",
            "restore",
        ]
    )
    for name in eoslog.__all__:
        assert getattr(eoslog, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = eoslog.nonsense


OF_PRODUCERS = """
    abort_transaction append begin_transaction close commit_transaction complete_transaction
    discard_gathered flush init_transactions name next_sequence prepare_transaction producer_epoch
    producer_id send send_offsets_to_transaction transaction
"""
NAMES = {
    "Consumer": """
        assign assignment beginning_offsets close closed commit committed committed_metadata
        end_offsets group_metadata lag offsets_for_times pause paused poll poll_arrow position
        resume seek
        seek_to_beginning seek_to_committed seek_to_end subscribe subscription unsubscribe
    """,
    "Producer": OF_PRODUCERS,
    "Store": """
        abort_prepared abort_transaction alter_config alter_topic application backup begin_run
        close closed commit_prepared commit_staged config consumer create_topic
        create_topics deletable_records delete_group delete_offsets delete_records
        delete_topic describe_group describe_log_dirs describe_transaction durability
        explain_last_stable_offset
        find_hanging_transactions flush groups metrics partition path processes producer
        producers read_only remembered scan snapshot sweep_run topics transactions verify
    """,
    "TransactionalProducer": OF_PRODUCERS + "transactional_id",
}


def test_objects_show_what_a_user_may_call_and_read(store):
    made = [store, store.producer(), store.producer(transactional_id="x"), store.consumer()]
    shown = {
        type(one).__name__: {name for name in dir(one) if not name.startswith("_")} for one in made
    }
    assert shown == {name: set(text.split()) for name, text in NAMES.items()}


def test_every_object_says_what_it_is(store, store_path):
    public = [getattr(module, name) for module in (eoslog, eoslog.aio) for name in module.__all__]
    classes = [one for one in public if isinstance(one, type)]
    assert [one for one in classes if one.__repr__ is object.__repr__] == []
    store.create_topic("t")
    producer, consumer = store.producer("rows"), store.consumer("readers")
    producer.append("t", 0, [b"x"])
    consumer.assign([eoslog.TopicPartition("t", 0)])
    transactional = store.producer(transactional_id="x")
    number = producer.producer_id
    writer = eoslog.StagedWriter(store_path, "app", "run", "0", partitions={"t": 1})
    for one, text in {
        producer: f"<eoslog.Producer 'rows', producer id {number}, epoch 0>",
        store.producer(): "<eoslog.Producer, producer id -1, epoch -1>",
        consumer: "<eoslog.Consumer of group 'readers', partitions: 1>",
        store.consumer(): "<eoslog.Consumer, partitions: 0>",
        transactional.transaction(): f"<eoslog transaction of {transactional!r}>",
        writer: "<eoslog.StagedWriter of 'app', attempt '0', open>",
    }.items():
        assert repr(one) == text
    writer.abandon()
    producer.close()
    consumer.close()
    assert repr(producer) == f"<eoslog.Producer 'rows', closed, producer id {number}, epoch 0>"
    assert repr(consumer) == "<eoslog.Consumer of group 'readers', closed>"


def test_objects_of_an_event_loop_say_what_they_are(store):
    async def shown() -> list[str]:
        async with eoslog.aio.wrap(store) as of_loop:
            producer = await of_loop.producer(transactional_id="x")
            made = [await of_loop.consumer("g"), await of_loop.producer(), producer]
            return [repr(one) for one in [*made, producer.transaction()]]

    consumer, producer, transactional, transaction = asyncio.run(shown())
    assert consumer == "<eoslog.aio.AsyncConsumer of <eoslog.Consumer of group 'g', partitions: 0>>"
    assert producer.startswith("<eoslog.aio.AsyncProducer of <eoslog.Producer, ")
    of = "<eoslog.TransactionalProducer 'x', uninitialized, producer id -1, epoch -1>"
    assert transactional == f"<eoslog.aio.AsyncTransactionalProducer of {of}>"
    assert transaction == f"<eoslog.aio.AsyncTransaction of {transactional}, outcome None>"


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert eoslog.__version__ == version("eoslog")


def test_importing_loads_neither_numpy_nor_lmdb_nor_pyarrow():
    code = (
        "import sys, eoslog\n"
        "from eoslog import TopicPartition, errors\n"
        "print([name for name in ('numpy', 'lmdb', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "command",
    [
        ["-c", "import eoslog; eoslog.open"],
        ["-c", "import eoslog; eoslog.errors"],
        ["-c", "from eoslog import read_process_write"],
        ["-c", "import eoslog.aio"],
        ["-c", "import eoslog.spark"],
        ["-c", "import eoslog.checking"],
        ["-m", "eoslog", "topics"],
        ["-m", "eoslog", "topics"],
    ],
)
def test_the_sources_alone_are_named_as_such(tmp_path, command):
    """As in a clone after `pip install .`: its folder comes before the installed package."""
    sources = Path(eoslog.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "bindings", "native", "spark")
    shutil.copytree(sources, tmp_path / "eoslog", ignore=ignored)
    # Without the environment's packages, among which an editable install is found.
    done = subprocess.run(
        [sys.executable, "-S", *command], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    last_line = done.stderr.splitlines()[-1]
    assert f"{tmp_path}/eoslog is eoslog's source code, not the installed package" in last_line
    assert "run Python in another directory after `pip install .`" in last_line
