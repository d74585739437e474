"""Every example runs as it stands and says what it promises. Those with Spark start one each."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
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


def run(name):
    command = [sys.executable, EXAMPLES / name, *ARGUMENTS.get(name, ())]
    return subprocess.run(command, capture_output=True, text=True, timeout=400)


def test_every_example_is_run_here_and_in_the_list():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == PLAIN.keys() | WITH_SPARK.keys()
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in listed for name in scripts)


@pytest.mark.parametrize("name", PLAIN)
def test_an_example(name):
    answer = run(name)
    assert answer.returncode == 0, answer.stderr
    for words in PLAIN[name]:
        assert words in answer.stdout


@pytest.mark.spark
@pytest.mark.parametrize("name", WITH_SPARK)
def test_an_example_with_spark(name):
    pytest.importorskip("pyspark")
    answer = run(name)
    assert answer.returncode == 0, answer.stderr
    for words in WITH_SPARK[name]:
        assert words in answer.stdout
