"""Every block of Python of the README and of docs/ runs by itself, in an empty directory."""

from __future__ import annotations

import grp
import os
import re
import shlex
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_directory import BrokerDirectory, batch
from cli_calls import DONE, call

import eoslog

ROOT = Path(__file__).resolve().parents[2]
# One program each: test_commands_page.py, test_services_page.py, tests/spark/test_spark_page.py,
# test_tutorial_page.py and testing/test_testing_page.py run them.
IN_ORDER = (
    "docs/commands.md",
    "docs/services.md",
    "docs/spark.md",
    "docs/testing.md",
    "docs/tutorial.md",
)
# Of the README the last one writes a DataFrame: tests/spark/test_spark_page.py runs it.
WITH_FRAME = ("README.md", 4)
# What a block prints for a record that another process appends to "orders"; it waits for more.
ENDLESS = {
    ("README.md", 3): "0 b'from outside'",
    ("docs/groups.md", 2): "b'from outside'",
    ("docs/asyncio.md", 2): "1 committed",
}
MORE_PAGES = ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/*/*.md"]
STORES = {"README.md": "data", "docs/groups.md": "groups-data", "docs/asyncio.md": "asyncio-data"}
WAIT_S_MAX = 60


def blocks_of(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md")))]
BLOCKS = [
    (page, number)
    for page in PAGES
    if page not in IN_ORDER
    for number in range(1, len(blocks_of(page)) + 1)
    if (page, number) not in {WITH_FRAME, *ENDLESS}
]


def test_the_blocks_are_found():
    assert len(BLOCKS) > 10
    assert all(blocks_of(page)[number - 1] for page, number in (WITH_FRAME, *ENDLESS))


def give_what_the_page_is_about(page: str, folder: Path) -> None:
    """The directories of a broker, and the store that the page's commands made of them."""
    if page == "docs/study-a-broker.md":
        sources = [BrokerDirectory(folder / "kafka" / name) for name in ("logs-1", "logs-2")]
        sources[0].partition("events-0", batch([b"one"]))
        paths = [one.stop() for one in sources]
        eoslog.import_kafka(paths, folder / "study")


@pytest.mark.parametrize(("page", "number"), BLOCKS)
def test_a_block_runs_by_itself(tmp_path, monkeypatch, page, number):
    give_what_the_page_is_about(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    code = compile(blocks_of(page)[number - 1], f"{page}, block {number}", "exec")
    exec(code, {"__name__": "__main__"})


@contextmanager
def running(code: str, folder: Path):
    """The block as a process, for so long at most."""
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(WAIT_S_MAX, process.kill)
        limit.start()
        try:
            yield process
        finally:
            limit.cancel()
            process.kill()


def wait_until(process: subprocess.Popen[str], is_done: Callable[[], bool]) -> None:
    while not is_done():
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.parametrize(("page", "number"), ENDLESS)
def test_a_block_that_waits_for_records_takes_each(tmp_path, page, number):
    code = blocks_of(page)[number - 1]
    assert "until Ctrl-C" in code
    with running(code, tmp_path) as process:
        path = tmp_path / STORES[page]
        wait_until(process, (path / "meta.properties").exists)
        with eoslog.open(path, durability=None) as store:
            wait_until(process, lambda: "orders" in store.topics())
            with store.producer() as producer:
                producer.send("orders", value=b"from outside", partition=0)
            assert process.stdout is not None
            assert ENDLESS[page, number] in process.stdout.readline()


# Pages with commands for a shell, and what runs them.
SHELL_BLOCKS = {
    "CONTRIBUTING.md": ".ci/run",
    "README.md": "tests/packaging/check_wheel.sh",
    "docs/commands.md": "tests/unit/test_commands_page.py",
    "docs/move-to-kafka.md": "tests/broker/test_move_page.py",
    "docs/security.md": "tests/unit/test_pages.py",
    "docs/spark.md": "tests/spark/test_ingest.py",
    "docs/study-a-broker.md": "tests/unit/test_pages.py",
    "docs/tutorial.md": "tests/unit/test_tutorial_page.py",
}


def shell_blocks_of(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(?:bash|console|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_every_block_for_a_shell_is_run_by_something():
    pages = {
        str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    }
    assert {page for page in pages if shell_blocks_of(page)} == SHELL_BLOCKS.keys()
    assert all((ROOT / runner).exists() for runner in SHELL_BLOCKS.values())


def test_the_extras_that_pages_install_are_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    texts = [
        path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    ]
    named = {name for text in texts for name in re.findall(r"eoslog\[(\w+)\]", text)}
    assert named
    assert named <= extras.keys()


def test_a_study_of_a_broker_by_commands(tmp_path, monkeypatch):
    for name in ("logs-1", "logs-2"):
        source = BrokerDirectory(tmp_path / "kafka" / name)
        source.partition("events-0" if name == "logs-1" else "others-0", batch([b"one"]))
        source.stop()
    monkeypatch.chdir(tmp_path)
    commands = "".join(shell_blocks_of("docs/study-a-broker.md")).splitlines()
    assert len(commands) >= 8
    for command in commands:
        answer = call(*shlex.split(command.removeprefix("$ eoslog ")))
        assert answer.status == DONE, (command, answer)


def test_a_group_may_read_after_the_commands_of_the_page(tmp_path):
    eoslog.open(tmp_path / "data", create=True).close()
    (block,) = shell_blocks_of("docs/security.md")
    group = grp.getgrgid(os.getgid()).gr_name
    script = block.replace("STORE", str(tmp_path / "data")).replace("analysts", group)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["bash", "-ec", script], check=True, env={**os.environ, "PATH": path})
    assert (tmp_path / "data").stat().st_mode & 0o7777 == 0o2750


def prose_of(path: Path) -> str:
    return re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def anchors_of(path: Path) -> set[str]:
    """The names under which the headings of a page are linked, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize(
    "page", [*PAGES, *(str(p.relative_to(ROOT)) for m in MORE_PAGES for p in sorted(ROOT.glob(m)))]
)
def test_the_links_of_a_page_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(ROOT / page).replace("\n", " ")):
        file, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (ROOT / page).parent / file if file else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []
