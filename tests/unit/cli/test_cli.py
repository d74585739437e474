"""The command line as a whole: how it is called, how it fails, and that it is light."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog.cli.group import COMMANDS
from eoslog.session.lock import StoreLock

TOPICS_OF_A_STORE = ["orders", "payments"]


@pytest.fixture
def store_path(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        for topic in TOPICS_OF_A_STORE:
            store.create_topic(topic, partitions=2)
    return path


def run(*arguments, **options):
    """The command line as a process of its own."""
    command = [sys.executable, "-m", "eoslog", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def topics_in(answer):
    return [row["topic"] for row in answer.json]


def test_without_a_command_it_says_what_there_is():
    answer = call()
    for name in COMMANDS:
        assert name in answer.stdout + answer.stderr


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_lists_every_command(option):
    answer = call(option)
    assert answer.status == DONE
    for name, (_, line) in COMMANDS.items():
        assert name in answer.stdout
        assert line.split()[0] in answer.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_the_shared_options(name):
    answer = call(name, "--help")
    assert answer.status == DONE
    assert "--store" in answer.stdout
    assert "--json" in answer.stdout


def test_version():
    answer = call("--version")
    assert answer.status == DONE
    assert answer.stdout.startswith("eoslog ")


def test_the_package_is_the_command():
    """Where several environments are at hand, `python -m eoslog` is the one of the interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "eoslog", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == call("--version").stdout


@pytest.mark.parametrize(
    ("name", "hint"), [("topcs", "topics"), ("procude", "produce"), ("frobnicate", "there are")]
)
def test_a_wrong_command_gets_a_hint(name, hint):
    assert_mistake(call(name), WRONG_USE, name, hint)


def test_a_store_in_the_place_of_a_command_gets_a_hint(store_path):
    assert_mistake(call(str(store_path), "topics"), WRONG_USE, f"--store {store_path}")


def test_a_wrong_subcommand_gets_a_hint(store_path):
    assert_mistake(call("topics", "--store", store_path, "craete"), WRONG_USE, "create")


def test_a_wrong_option_gets_a_hint(store_path):
    assert_mistake(call("topics", "--stroe", store_path), WRONG_USE, "--store")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--store", "{store}", "--json", "topics"),
        ("topics", "--store", "{store}", "--json"),
        ("topics", "list", "--store", "{store}", "--json"),
        ("topics", "--store", "{store}", "--json", "list"),
        ("--json", "topics", "list", "--store", "{store}"),
    ],
)
def test_store_and_json_may_stand_anywhere(store_path, arguments):
    answer = call(*(argument.format(store=store_path) for argument in arguments))
    assert answer.status == DONE
    assert topics_in(answer) == TOPICS_OF_A_STORE


def test_the_environment_names_the_store(store_path):
    answer = call("topics", "--json", EOSLOG_STORE=str(store_path))
    assert topics_in(answer) == TOPICS_OF_A_STORE


@pytest.mark.parametrize("before", [True, False])
def test_an_option_goes_before_the_environment(store_path, tmp_path, before):
    option = ("--store", store_path)
    arguments = (*option, "topics", "--json") if before else ("topics", "--json", *option)
    answer = call(*arguments, EOSLOG_STORE=str(tmp_path / "elsewhere"))
    assert topics_in(answer) == TOPICS_OF_A_STORE


@pytest.mark.parametrize(
    "arguments", [("topics",), ("verify",), ("producers",), ("consume", "orders")]
)
def test_without_a_store_it_says_how_to_name_one(arguments):
    assert_mistake(call(*arguments), WRONG_USE, "--store", "EOSLOG_STORE")


@pytest.mark.parametrize(
    "arguments",
    [("topics",), ("verify",), ("producers",), ("consume", "orders"), ("produce", "orders")],
)
def test_a_directory_that_is_no_store_is_a_failure(tmp_path, arguments):
    (tmp_path / "notes.txt").write_text("not a store")
    assert_mistake(call(*arguments, "--store", tmp_path), FAILED, "NotAStoreError", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("arguments", [("topics",), ("verify", "--repair")])
def test_a_store_that_does_not_exist_is_a_failure_and_is_not_made(tmp_path, arguments):
    path = tmp_path / "gone"
    answer = call(*arguments, "--store", path)
    assert_mistake(answer, FAILED, str(path), "there is no such directory")
    assert not path.exists()


def test_a_line_end_in_a_path_is_one_line_still(tmp_path):
    answer = call("topics", "--store", tmp_path / "a\nb")
    assert_mistake(answer, FAILED, r"a\nb is not a store")
    assert len(answer.stderr.splitlines()) == 1


@pytest.mark.parametrize("durability", ["commit", "process"])
def test_a_store_that_is_in_use_is_looked_at_all_the_same(store_path, durability):
    with eoslog.open(store_path, durability=durability) as store:
        store.create_topic("just-made")
        answer = run("topics", "--store", store_path)
    assert answer.returncode == 0, answer.stderr
    assert "just-made" in answer.stdout


def test_a_store_for_one_process_is_a_failure_that_names_it(store_path):
    lock = StoreLock(store_path / "state")
    lock.opened(share=False)
    answer = run("topics", "delete", "t", "--yes", "--store", store_path)
    lock.release()
    assert answer.returncode == FAILED
    assert "StoreInUseError" in answer.stderr
    assert str(os.getpid()) in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_traceback_is_there_for_those_who_ask(tmp_path):
    with pytest.raises(eoslog.errors.StoreError):
        call("topics", "--store", tmp_path / "gone", EOSLOG_TRACEBACK="1")


def test_as_a_process_it_works_and_returns_its_status(store_path):
    answer = run("--json", "topics", "--store", store_path)
    assert answer.returncode == DONE
    assert [row["topic"] for row in json.loads(answer.stdout)] == TOPICS_OF_A_STORE
    assert run("topics", "--store", store_path / "gone").returncode == FAILED
    assert run("topics").returncode == WRONG_USE


def test_the_installed_command_is_the_same(store_path):
    command = Path(sys.executable).parent / "eoslog"
    if not command.exists():
        pytest.skip("eoslog is not installed in this environment")
    answer = subprocess.run(
        [command, "topics", "--store", store_path], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == DONE
    assert "orders" in answer.stdout


def test_no_command_but_spark_s_imports_spark(store_path):
    code = (
        "import sys; from eoslog.cli.group import cli;"
        f"cli.main(['topics', '--store', {str(store_path)!r}], standalone_mode=False);"
        "heavy = {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_a_reader_that_goes_away_is_no_traceback(store_path):
    with eoslog.open(store_path) as store, store.producer() as producer:
        for _ in range(20_000):
            producer.send("orders", value=b"x" * 100, partition=0)
    with subprocess.Popen(
        [sys.executable, "-m", "eoslog", "consume", "orders", "--store", store_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_without_click_one_sentence_says_what_to_install(store_path):
    code = "import sys; sys.modules['click'] = None;from eoslog.cli import main; main(['topics'])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == FAILED
    assert "pip install 'eoslog[cli]'" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_all_commands_are_click_commands_of_their_name():
    from eoslog.cli.group import cli

    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command.name == name


def assert_full_output_is_named(*arguments: str) -> None:
    with open("/dev/full", "wb") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "eoslog", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert answer.stderr == "Error: standard output: No space left on device\n"
    assert answer.returncode == FAILED


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("command", ["topics", "verify", "consume orders"])
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_standard_output_that_takes_no_more_is_named(store_path, command, as_json):
    with eoslog.open(store_path) as store, store.producer() as producer:
        producer.send("orders", value=b"x", partition=0)
    assert_full_output_is_named(*command.split(), "--store", str(store_path), *as_json)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topics", "--help"]])
def test_a_help_text_that_cannot_go_out_is_an_error(arguments):
    assert_full_output_is_named(*arguments)


@pytest.mark.parametrize("command", [["topics", "delete", "orders"], ["groups", "delete", "g"]])
def test_a_question_that_nobody_can_answer_is_an_error(store_path, command):
    with eoslog.open(store_path) as store:
        store.consumer(group="g").commit({eoslog.TopicPartition("orders", 0): 0})
    program = "import os, sys; os.close(0); os.execv(sys.executable, sys.argv[1:])"
    call = [sys.executable, "-m", "eoslog", *command, "--store", str(store_path)]
    answer = subprocess.run(
        [sys.executable, "-c", program, *call], capture_output=True, text=True, timeout=60
    )
    assert answer.stderr == "Error: standard input: it is closed\n"
    assert answer.returncode == FAILED
    with eoslog.open(store_path) as store:
        assert "orders" in store.topics()
        assert "g" in store.groups()


def test_an_empty_path_names_no_store():
    assert_mistake(call("topics", "--store", ""), WRONG_USE, "--store", "empty")
