"""Workers take an installed pyspark from its files, and never one of another installation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eoslog.spark.spark_session import _settings

MODULE = "spark.python.daemon.module"
FIND = """
from eoslog.spark.worker_daemon import prefer_installed
prefer_installed()
from importlib.util import find_spec
print(find_spec("pyspark").origin)
"""


def zip_of(package):
    return package / "python" / "lib" / "pyspark.zip"


@pytest.fixture
def installed():
    return Path(pytest.importorskip("pyspark").__file__).parent


def found(zipped):
    answer = subprocess.run(
        [sys.executable, "-c", FIND],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(zipped)},
    )
    return Path(answer.stdout.strip())


def test_the_package_is_preferred_to_its_zip_file(installed):
    assert found(zip_of(installed)) == installed / "__init__.py"


def test_the_zip_file_of_another_installation_comes_first(installed, tmp_path):
    zipped = zip_of(tmp_path / "spark")
    zipped.parent.mkdir(parents=True)
    shutil.copy(zip_of(installed), zipped)
    assert found(zipped) == zipped / "pyspark" / "__init__.py"


@pytest.mark.parametrize(
    ("master", "python", "is_set"),
    [
        ("local[2,4]", sys.executable, True),
        ("local[2,4]", "python3", False),  # It may not know eoslog.
        ("spark://host:7077", sys.executable, False),
    ],
)
def test_it_is_used_where_the_workers_are_of_this_environment(monkeypatch, master, python, is_set):
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    assert (MODULE in _settings(master, Path("/log4j"))) is is_set


@pytest.mark.long
@pytest.mark.spark
def test_workers_of_a_session_compile_no_pyspark(installed):
    code = """
import pyspark
from eoslog.spark import session
spark = session("plain", "local[1]")
print(*spark.sparkContext.parallelize([0], 1).map(lambda _: pyspark.__file__).collect())
spark.stop()
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == f"{installed / '__init__.py'}\n", answer.stderr
