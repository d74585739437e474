"""What `eoslog` offers: each name, and what an import costs."""

import shutil
import subprocess
import sys
from pathlib import Path

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
            "KafkaExport",
            "KafkaImport",
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
            "export_kafka",
            "import_kafka",
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
