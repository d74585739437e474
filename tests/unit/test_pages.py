"""Every block of Python of the README and of docs/ runs by itself, in an empty directory."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_directory import BrokerDirectory, batch

import eoslog

ROOT = Path(__file__).resolve().parents[2]
# One program each: test_commands_page.py, tests/spark/test_spark_page.py, test_tutorial_page.py and
# testing/test_testing_page.py run them.
IN_ORDER = ("docs/commands.md", "docs/spark.md", "docs/testing.md", "docs/tutorial.md")
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
