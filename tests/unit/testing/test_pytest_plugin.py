"""The plugin of pytest, as a session of its own uses it. It needs nothing of the repository."""

from __future__ import annotations

import re
import signal
import textwrap
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def session(pytester, monkeypatch):
    """A function that runs pytest on a text as the tests of another project."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(text: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_of_user=textwrap.dedent(text))
        return pytester.runpytest_subprocess("-p", "no:benchmark", *arguments)

    return run


def test_a_session_without_a_fixture_imports_nothing_of_eoslog(session):
    found = session(
        """
        import sys

        def test_imports():
            assert "pytest_eoslog" in sys.modules
            assert [name for name in sys.modules if name.split(".")[0] == "eoslog"] == []
        """
    )
    found.assert_outcomes(passed=1)


STORES = """
    import os
    from pathlib import Path

    import pytest

    def mount_kind(path):
        from eoslog.fs.file_system import mount_of
        return mount_of(path).kind

    def note(store):
        with open(os.environ["NOTED"], "a") as file:
            print(store.path, file=file)

    def test_a_store_is_empty_and_takes_records(eoslog_store, eoslog_topic):
        note(eoslog_store)
        assert list(eoslog_store.topics()) == [eoslog_topic]
        assert eoslog_topic == "test_a_store_is_empty_and_takes_records"
        assert eoslog_store.durability == "process"
        with eoslog_store.producer() as producer:
            producer.send(eoslog_topic, b"value")
        with eoslog_store.consumer() as consumer:
            consumer.assign([(eoslog_topic, 0)])
            assert [one.value for one in consumer.poll(timeout=10)] == [b"value"]

    @pytest.mark.parametrize("name", ["a/b c", "ü" * 300, "..", ""])
    def test_a_topic_has_a_name(eoslog_store, eoslog_topic, name):
        assert eoslog_topic in eoslog_store.topics()

    @pytest.mark.eoslog(durability="commit", config={"eoslog.checkpoint.interval.ms": 1})
    class TestMarked:
        def test_by_its_class(self, eoslog_store):
            note(eoslog_store)
            assert eoslog_store.durability == "commit"
            assert eoslog_store.config["eoslog.checkpoint.interval.ms"] == 1

        @pytest.mark.eoslog(durability="always")
        def test_the_closest_mark_wins(self, eoslog_store):
            assert eoslog_store.durability == "always"
            assert eoslog_store.config["eoslog.checkpoint.interval.ms"] == 1

    def test_a_store_may_be_closed(eoslog_store):
        eoslog_store.close()

    def test_what_is_ended_is_no_leak(eoslog_store, eoslog_topic):
        producer = eoslog_store.producer(transactional_id="id")
        producer.init_transactions()
        with producer.transaction():
            producer.send(eoslog_topic, b"value")
        producer.begin_transaction()
        producer.send(eoslog_topic, b"value")
        producer.flush()
        producer.close()
"""


def noted(path: Path) -> list[Path]:
    return [Path(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("more", [[], ["-n", "2"]], ids=["one process", "xdist"])
def test_stores_are_used_and_removed(session, tmp_path, monkeypatch, more):
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    found = session(STORES, "--strict-markers", "-p", "no:cacheprovider", "-W", "error", *more)
    found.assert_outcomes(passed=9)
    paths = noted(tmp_path / "noted")
    assert len(set(paths)) == 2
    assert [path for path in paths if path.exists() or path.parent.exists()] == []


def test_a_transaction_left_open_fails_the_test_and_is_named(session):
    found = session(
        """
        import pytest

        def begun(store, name, topic=None):
            producer = store.producer(transactional_id=name)
            producer.init_transactions()
            producer.begin_transaction()
            if topic is not None:
                producer.send(topic, b"value")
            return producer

        def test_left_open(eoslog_store, eoslog_topic):
            begun(eoslog_store, "in the log", eoslog_topic).flush()
            begun(eoslog_store, "gathered", eoslog_topic)
            begun(eoslog_store, "prepared", eoslog_topic).prepare_transaction()

        def test_one(eoslog_store):
            begun(eoslog_store, "empty")

        def test_that_failed_for_another_reason(eoslog_store, eoslog_topic):
            begun(eoslog_store, "in the log", eoslog_topic).flush()
            raise RuntimeError("another reason")

        @pytest.mark.xfail(strict=True)
        def test_that_fails_as_expected(eoslog_store, eoslog_topic, eoslog_faults):
            begun(eoslog_store, "in the log", eoslog_topic).flush()
            eoslog_faults.fill_disk()
            raise RuntimeError("another reason")

        def test_that_is_skipped(eoslog_store, eoslog_topic):
            begun(eoslog_store, "in the log", eoslog_topic).flush()
            pytest.skip("another reason")

        def test_of_a_fault_that_was_not_used(eoslog_faults):
            eoslog_faults.fill_disk()
        """
    )
    found.assert_outcomes(passed=3, failed=1, errors=3, xfailed=1, skipped=1)
    found.stdout.fnmatch_lines(
        [
            "the test left 3 transactions open in eoslog_store:",
            "  transactional id 'gathered', producer id *, epoch 0: open for *s; nothing of it *",
            "  transactional id 'in the log', producer id *, epoch 0: open for *s, in test_left_*",
            "  transactional id 'prepared', producer id *, epoch 0: prepared for *s, in test_*",
            "the test left 1 transaction open in eoslog_store:",
            "  transactional id 'empty', producer id *, epoch 0: open without a record; *",
            "<eoslog.testing.Fault 'full' of the store, fired 0> was not used: it acts in its *",
        ]
    )


@pytest.mark.parametrize(("policy", "kept"), [("failed", True), ("none", False)])
def test_the_store_of_a_failed_test_is_kept_as_pytest_keeps_directories(session, policy, kept):
    found = session(
        """
        def test_that_passes(eoslog_store):
            print(eoslog_store.path)

        def test_that_fails(eoslog_store, eoslog_topic):
            with eoslog_store.producer() as producer:
                producer.send(eoslog_topic, b"value")
            raise RuntimeError
        """,
        *("-o", f"tmp_path_retention_policy={policy}"),
    )
    found.assert_outcomes(passed=1, failed=1)
    paths = re.findall(r"^eoslog_store is kept in (.*)$", found.stdout.str(), re.MULTILINE)
    assert len(paths) == kept
    for path in paths:
        import eoslog

        with eoslog.open(path) as store:
            assert store.partition("test_that_fails", 0).log_end_offset == 1


def test_a_wrong_mark_is_an_error(session):
    found = session(
        """
        import pytest

        @pytest.mark.eoslog("commit")
        def test_by_position(eoslog_store):
            pass

        @pytest.mark.eoslog(durable="commit")
        def test_by_another_name(eoslog_store):
            pass

        @pytest.mark.eoslog(durability="never")
        def test_of_another_value(eoslog_store):
            pass
        """
    )
    found.assert_outcomes(errors=3)
    takes = "pytest.mark.eoslog takes durability=... and config=..., got "
    found.stdout.fnmatch_lines([f"{takes}'commit'", f"{takes}durable", "E*ValueError: *'never'*"])


def test_eoslog_is_not_compiled_again_for_its_assert_statements(session, tmp_path, monkeypatch):
    """As pytest does with each module of a distribution, installed from a wheel, with a plugin."""
    information = tmp_path / "as_installed-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: as_installed\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[pytest11]\nnothing = as_installed\n")
    (information / "RECORD").write_text("as_installed.py,,\neoslog/__init__.py,,\n")
    (tmp_path / "as_installed.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = session(
        """
        def test_names(pytestconfig):
            names = pytestconfig.pluginmanager.rewrite_hook._must_rewrite
            assert "as_installed" in names
            assert "eoslog" not in names
        """
    )
    found.assert_outcomes(passed=1)


def test_what_a_killed_session_left_on_the_ram_disk_is_removed(session, pytester, tmp_path):
    from eoslog.testing.ram_disk import find_ram_disk, is_ram_disk

    if find_ram_disk() is None or is_ram_disk(tmp_path):
        pytest.skip("there is no RAM disk besides the one of the tests")
    pytester.makepyfile(
        test_killed="""
        import os, signal

        def test_it(eoslog_store):
            print(f"<{eoslog_store.path}>", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    killed = pytester.runpytest_subprocess("-s", "-p", "no:benchmark", "test_killed.py")
    assert killed.ret == -signal.SIGKILL
    path = Path(re.findall("<(.*)>", killed.stdout.str())[0])
    assert path.exists()
    session("def test_it(eoslog_store): pass", "test_of_user.py").assert_outcomes(passed=1)
    assert not path.parent.exists()


def test_without_a_ram_disk_stores_are_in_the_directory_of_pytest(
    session, pytester, tmp_path, monkeypatch
):
    pytester.makeconftest(
        """
        from eoslog.testing import store_fixture

        store_fixture.find_ram_disk = lambda: None
        """
    )
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    base = tmp_path / "base"
    session(STORES, f"--basetemp={base}").assert_outcomes(passed=9)
    paths = noted(tmp_path / "noted")
    assert [path.is_relative_to(base) for path in paths] == [True, True]
    assert not any(path.parent.exists() for path in paths)
