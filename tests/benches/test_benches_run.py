"""Every bench in its tiny size: what it measures is right, and each figure has a bench.

The short form only collects the benches of Spark: they take longer than all others together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from short_form import short_form

pytest.importorskip("pytest_benchmark")

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHES = REPOSITORY / "benches"
# Read from the disk: a file system in memory has none to count.
NEEDS_A_DISK = {"recover_share"}


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.soak)],
    ids=["without Spark", "all"],
)
def with_spark(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(scope="module")
def left_out(with_spark: bool) -> set[str]:
    """The figures that the run does not measure."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(BENCHES)
        from figures import FIGURES
    of_spark = {name for name in FIGURES if name.startswith("spark_")}
    return NEEDS_A_DISK if with_spark else NEEDS_A_DISK | of_spark


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, with_spark: bool) -> Path:
    """The results file of one run of the benches."""
    folder = tmp_path_factory.mktemp("benches")
    path = folder / "results.json"
    command = [sys.executable, "-m", "pytest", str(BENCHES), "--benchmark-only", "-q"]
    options = [f"--benchmark-json={path}", "-p", "no:cacheprovider"]
    if not with_spark:
        options += ["-k", "not bench_spark"]
    # One of several processes that run tests, this one may be: benches are not to notice.
    environment = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    environment |= {"EOSLOG_BENCH_SIZE": "tiny", "EOSLOG_BENCH_DIR": str(folder)}
    done = subprocess.run(
        command + options,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
    assert [one.name for one in folder.iterdir()] == ["results.json"], "a bench left files behind"
    return path


@pytest.mark.long
def test_every_figure_is_measured_by_one_bench(
    results: Path, left_out: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHES)
    from figures import FIGURES

    found = [
        name
        for bench in json.loads(results.read_text())["benchmarks"]
        for name in bench["extra_info"].get("figures", {})
    ]
    assert len(found) == len(set(found))
    assert set(found) | left_out == set(FIGURES)


@pytest.mark.long
def test_the_report_has_a_row_for_every_figure(results: Path, left_out: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHES / "report.py"), str(results)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    missing = [row for row in rows if "not measured" in row]
    assert len(missing) <= len(left_out), missing
    assert "processor: " in done.stdout
    assert "sizes: tiny" in done.stdout


# All but the one that counts syncs, which tests/call_faults does, and the one that waits.
@pytest.mark.parametrize(
    "name",
    short_form(["poll", "init", "wake", "topic", "state", "files", "export"], "poll", "export"),
)
def test_a_cost_that_must_not_grow_is_measured(name):
    done = subprocess.run(
        [sys.executable, BENCHES / "growth.py", "--one", name, "4"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) > 0


def test_a_cost_that_is_not_there_is_named():
    done = subprocess.run(
        [sys.executable, BENCHES / "growth.py", "polls"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no such cost: polls" in done.stderr


# Their syncs are known: LMDB writes its last page through a descriptor with O_DSYNC.
KNOWN_SYNCS = {"bare": 1, "two_files": 2, "lmdb": 2, "sqlite_1000": None, "transaction_4": None}


@pytest.mark.parametrize("names", short_form(["", " ".join(KNOWN_SYNCS)], " ".join(KNOWN_SYNCS)))
def test_durable_commits_are_compared(names: str, tmp_path: Path) -> None:
    from durable_works import WORKS

    done = subprocess.run(
        [sys.executable, BENCHES / "durable.py", "--quick", *names.split()],
        env=os.environ | {"EOSLOG_BENCH_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir()), "a bench left files behind"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()
        if line.startswith("| ")
    ]
    found = {cells[0]: cells for cells in rows}
    for name in names.split() or WORKS:
        commits, syncs = found[WORKS[name].what][1], found[WORKS[name].what][5]
        assert float(commits.replace(",", "")) > 0
        if KNOWN_SYNCS.get(name) is not None:
            assert float(syncs) == KNOWN_SYNCS[name]
    assert WORKS["transaction_4"].what in found
    has_sqlite = "transaction of one record beside SQLite" in found
    assert has_sqlite == (not names), "a figure of works that did not run"


def test_a_work_that_is_not_there_is_named() -> None:
    done = subprocess.run(
        [sys.executable, BENCHES / "durable.py", "oracle"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no such work: oracle" in done.stderr
