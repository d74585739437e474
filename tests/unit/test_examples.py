"""Every example runs as it stands and says what it promises. Those with Spark share a session."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
IN_ONE_SESSION = Path(__file__).with_name("examples_in_one_session.py")
# script: words of its output
PLAIN = {
    "produce_and_consume.py": ("1000 records read", "offset 5 of orders-0: b'customer "),
    "resume_after_a_kill.py": ("60000 records, each number once and in order: True",),
    "read_process_write.py": ("each order has its invoice, once and in order: True",),
    "asyncio_service.py": ("each of 4000 orders has its bill, once: True",),
}
WITH_SPARK = {
    "land_a_dataframe.py": (
        "the job: committed True, 100000 records",
        "the same job again: committed False, 0 records",
        "100000 records in the topic",
    ),
    "compare_with_parquet.py": (
        "2,000 rows of 100 bytes",
        "parquet, no codec",
        "counted in Python",
        "eoslog",
    ),
    "stage_and_commit.py": (
        "before the decision: 0 records",
        "after it: 10000 records",
        "the same decision again: committed False",
    ),
    "stream_to_a_topic.py": ("each of 10000 orders has its bill, once: True",),
}
ARGUMENTS = {"compare_with_parquet.py": ("2000", "100", "1")}


def test_every_example_is_run_here_and_in_the_list():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == PLAIN.keys() | WITH_SPARK.keys()
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in listed for name in scripts)


@pytest.mark.parametrize("name", PLAIN)
def test_an_example(name):
    command = [sys.executable, EXAMPLES / name]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert answer.returncode == 0, answer.stderr
    for words in PLAIN[name]:
        assert words in answer.stdout


@pytest.fixture(scope="module")
def with_spark(tmp_path_factory):
    """What became of each example with Spark; one process runs all of them."""
    pytest.importorskip("pyspark")
    folder = tmp_path_factory.mktemp("examples")
    calls = [",".join((name, *ARGUMENTS.get(name, ()))) for name in WITH_SPARK]
    command = [sys.executable, IN_ONE_SESSION, folder, *calls]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert answer.returncode == 0, answer.stderr
    return {name: json.loads((folder / name).read_text("utf-8")) for name in WITH_SPARK}


# The first one waits for all of them.
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.parametrize("name", WITH_SPARK)
def test_an_example_with_spark(with_spark, name):
    found = with_spark[name]
    assert not found["raised"], found["raised"]
    assert found["stops"] == 1
    for words in WITH_SPARK[name]:
        assert words in found["printed"]
