"""The C-level protocol of processes, driven hard: see `control_page_stress.c`.

Under a thread sanitizer, with threads; and without, where threads and processes die at any moment.
That the program would notice a broken protocol is tested with broken ones.
"""

import os
import platform
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "control_page_stress.c"
HEADERS = Path(__file__).resolve().parents[2] / "native" / "include"
COMPILER = os.environ.get("CC", "gcc")
FLAGS = ["-std=gnu11", "-g", "-pthread", "-Wall", "-Wextra"]
# Sanitizers do not follow fences alone; the loads and stores beside them are atomic too.
SANITIZED = ["-O1", "-fsanitize=thread", "-Wno-unknown-warning-option", "-Wno-tsan"]
IN_FIXED_PLACES = ["setarch", platform.machine(), "-R"]
SHORT_S = 1.0
SOAK_S = 120.0
# A busy machine may leave a run too little time for all that is to happen in it.
LONGEST_S = 200.0


def build(folder, flags, headers=HEADERS):
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no {COMPILER}")
    program = folder / "control_page_stress"
    command = [COMPILER, *FLAGS, *flags, f"-I{headers}", str(SOURCE), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, done.stderr
    return program, done.stderr


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    program, messages = build(tmp_path_factory.mktemp("plain"), ["-O2", "-Werror"])
    assert program is not None, messages
    return program


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    program, messages = build(tmp_path_factory.mktemp("sanitized"), SANITIZED)
    if program is None:
        pytest.skip(f"{COMPILER} has no thread sanitizer: {messages[-200:]}")
    return program


def run(program, kind, seconds, seed, *, under_sanitizer=False):
    command = [str(program), kind, str(seconds), str(seed)]
    if under_sanitizer and may_choose_places():
        # A sanitizer's own memory has fixed places.
        command = [*IN_FIXED_PLACES, *command]
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 200, env=environment, check=False
    )


def may_choose_places():
    """Whether a program may be run without randomized addresses; some containers refuse it."""
    if shutil.which("setarch") is None:
        return False
    tried = subprocess.run([*IN_FIXED_PLACES, "true"], capture_output=True, check=False)
    return tried.returncode == 0


def counts_of(done):
    assert done.returncode == 0, done.stderr[-4000:]
    words = done.stdout.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def run_for(program, kind, seconds, wanted, **named):
    """Run again and again, each time from another seed, until so many seconds are over and all that
    is wanted has happened.
    """
    began_s = time.monotonic()
    total: dict[str, int] = {}
    while not all(map(total.get, wanted)) or time.monotonic() < began_s + seconds:
        assert time.monotonic() < began_s + seconds + LONGEST_S, total
        seed = random.randrange(1 << 30)
        print(f"{kind}, seed {seed}")
        counts = counts_of(run(program, kind, min(seconds, 10.0), seed, **named))
        total = {name: total.get(name, 0) + count for name, count in counts.items()}
    return total


def check_threads(program, seconds):
    wanted = ("records", "views", "syncs", "woken")
    counts = run_for(program, "threads", seconds, wanted, under_sanitizer=True)
    assert not counts["late"] and not counts["repairs"], counts


def check_deaths(program, kind, seconds):
    run_for(program, kind, seconds, ("deaths", "repairs", "takeovers", "syncs", "woken"))


def test_threads_under_a_sanitizer(sanitized):
    check_threads(sanitized, SHORT_S)


@pytest.mark.parametrize("kind", ["dying-threads", "processes"])
def test_holders_of_locks_die(plain, kind):
    check_deaths(plain, kind, SHORT_S)


BROKEN = {
    "nobody is woken": (
        "static inline void shared_word_wake(uint32_t *word, uint32_t step, uint32_t bits) {",
        "static inline void shared_word_wake(uint32_t *word, uint32_t step, uint32_t bits) {\n"
        "    if (*word + 1 != 0) return;",
        "wake-ups were lost",
    ),
    "the wish comes too late": (
        "__atomic_exchange_n(&page->wanted, 0, __ATOMIC_SEQ_CST)",
        "(__atomic_store_n(&page->wanted, 0, __ATOMIC_SEQ_CST), 0)",
        "wake-ups were lost",
    ),
    "a wish takes the place of another": (
        "__atomic_fetch_or(&page->wanted, who, __ATOMIC_SEQ_CST)",
        "__atomic_store_n(&page->wanted, who, __ATOMIC_SEQ_CST)",
        "wake-ups were lost",
    ),
    "views are not taken together": (
        "if (__atomic_load_n(&page->sequence, __ATOMIC_RELAXED) == before)",
        "if (before + 1 != 0)",
        "a view w",
    ),
}


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_protocol_is_noticed(tmp_path, name):
    before, after, complaint = BROKEN[name]
    headers = tmp_path / "include"
    shutil.copytree(HEADERS, headers)
    changed = 0
    for path in (headers / "control_page.h", headers / "shared_page.h"):
        text = path.read_text()
        changed += text.count(before)
        path.write_text(text.replace(before, after))
    assert changed == 1, "the header has another text now: break it anew"
    program, messages = build(tmp_path, ["-O2"], headers)
    assert program is not None, messages
    for seed in range(20):
        done = run(program, "threads", 1.0, seed)
        if done.returncode:
            break
    assert complaint in done.stderr


def test_a_store_without_its_order_is_noticed_by_the_sanitizer(tmp_path, sanitized):
    headers = tmp_path / "include"
    shutil.copytree(HEADERS, headers)
    path = headers / "control_page.h"
    text = path.read_text()
    begin = text.index("void control_store(int64_t *field, int64_t value)")
    store = "__atomic_store_n(field, value, __ATOMIC_RELEASE)"
    assert text.index(store, begin) < text.index("}", begin)
    relaxed = text[begin:].replace(store, store.replace("RELEASE", "RELAXED"), 1)
    path.write_text(text[:begin] + relaxed)
    program, messages = build(tmp_path, SANITIZED, headers)
    assert program is not None, messages
    for seed in range(20):
        done = run(program, "threads", 5.0, seed, under_sanitizer=True)
        if done.returncode:
            break
    assert "data race" in done.stderr


@pytest.mark.soak
def test_threads_under_a_sanitizer_for_long(sanitized):
    check_threads(sanitized, SOAK_S)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["dying-threads", "processes"])
def test_holders_of_locks_die_for_long(plain, kind):
    check_deaths(plain, kind, SOAK_S)
