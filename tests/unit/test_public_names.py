"""What `eoslog` offers: each name, and what an import costs."""

import subprocess
import sys

import pytest

import eoslog


def test_public_names_are_pinned_and_load_when_asked_for():
    assert (
        sorted(eoslog.__all__)
        == eoslog.__all__
        == [
            "AbortedTransaction",
            "AppendResult",
            "ApplicationState",
            "Consumer",
            "ConsumerGroupMetadata",
            "GroupDescription",
            "HangingTransaction",
            "MemberDescription",
            "OffsetAndMetadata",
            "OffsetAndTimestamp",
            "OpenTransaction",
            "Partition",
            "Producer",
            "ProducerState",
            "Record",
            "StagedCommit",
            "StagedFile",
            "StagedMessage",
            "StagedProducer",
            "StagedWriter",
            "Store",
            "TopicDescription",
            "TopicPartition",
            "TransactionDescription",
            "TransactionListing",
            "TransactionalProducer",
            "__version__",
            "errors",
            "open",
            "read_process_write",
        ]
    )
    for name in eoslog.__all__:
        assert getattr(eoslog, name) is not None
    assert set(eoslog.__all__) <= set(dir(eoslog))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = eoslog.nonsense


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
