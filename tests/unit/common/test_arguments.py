"""Functions that callers hand in: one that would not run when it is called is refused."""

from __future__ import annotations

import asyncio
import functools
import threading
import warnings
from concurrent.futures import Future
from unittest import mock

import pytest
from stores import values_of

import eoslog
import eoslog.aio
from eoslog import Store, read_process_write
from eoslog.checking import Recorder
from eoslog.common.arguments import check_ran, check_synchronous

GROUP = "upper"


async def coroutine_function(*_):
    pytest.fail("not to be called")


def generator_function(*_):
    yield pytest.fail("not to be called")


async def async_generator_function(*_):
    yield pytest.fail("not to be called")


async def quiet(*_):
    return None


class AsyncCall:
    async def __call__(self, *_):
        pytest.fail("not to be called")


class GeneratorCall:
    def __call__(self, *_):
        yield pytest.fail("not to be called")


class Methods:
    async def of_object(self, *_):
        pytest.fail("not to be called")

    @classmethod
    async def of_class(cls, *_):
        pytest.fail("not to be called")

    @staticmethod
    def of_none(*_):
        yield pytest.fail("not to be called")


def task(*_):
    return asyncio.get_running_loop().create_task(quiet())


ASYNC_FUNCTIONS = [
    coroutine_function,
    async_generator_function,
    AsyncCall(),
    functools.partial(coroutine_function, 1),
    functools.partial(functools.partial(AsyncCall(), 1), 2),
    Methods().of_object,
    Methods.of_class,
    mock.AsyncMock(),
]
GENERATOR_FUNCTIONS = [
    generator_function,
    GeneratorCall(),
    functools.partial(generator_function, 1),
    Methods.of_none,
]
NO_FUNCTIONS = [None, 5, "name", [print]]

# Functions whose results alone show that nothing was done.
RESULTS = [
    lambda *_: quiet(),
    functools.singledispatch(coroutine_function),
    functools.wraps(print)(lambda *_: coroutine_function()),
    lambda *_: (pytest.fail("not to be run") for _ in range(3)),
    lambda *_: async_generator_function(),
    lambda *_: map(pytest.fail, "abc"),
    lambda *_: filter(pytest.fail, "abc"),
    lambda *_: [quiet(), quiet()],
    lambda *_: (None, (pytest.fail("not to be run") for _ in range(3))),
    lambda *_: {"sent": quiet()},
    lambda *_: Future(),
    lambda *_: [Future()],
    lambda *_: threading.Thread(target=pytest.fail),
    lambda *_: functools.partial(pytest.fail, "not to be called"),
    lambda *_: lambda: pytest.fail("not to be called"),
    lambda client, *_: client.close,
]


@pytest.fixture
def topics(store: Store) -> Store:
    """A store with five records in "in", and an empty "out"."""
    store.create_topic("in")
    store.create_topic("out")
    with store.producer() as producer:
        for number in range(5):
            producer.send("in", b"v%d" % number)
    return store


def processed(store: Store, process, **changes) -> int:
    settings = {"topics": ["in"], "group": GROUP, "until_caught_up": True, "poll_timeout_s": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # That a coroutine was never awaited, say.
        return read_process_write(store, process, **settings | changes)


def check_nothing_was_done(store: Store) -> None:
    assert store.groups().get(GROUP, {}) == {}
    assert values_of(store, "out", 0) == []
    # And the next run has all of it.
    assert processed(store, lambda producer, records: None) == 5


@pytest.mark.parametrize("process", [*ASYNC_FUNCTIONS, *GENERATOR_FUNCTIONS, *NO_FUNCTIONS])
def test_a_function_that_would_not_run_is_refused_before_anything_is_done(topics, process):
    with pytest.raises(TypeError, match="process must be"):
        processed(topics, process)
    assert topics.transactions() == []
    check_nothing_was_done(topics)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("process", RESULTS)
def test_a_result_that_nothing_runs_aborts_the_transaction(topics, process, share):
    def sends(producer, records):
        producer.send("out", b"not to be seen")
        return process(producer, records)

    with pytest.raises(TypeError, match="process returned a"):
        processed(topics, sends, share=share)
    check_nothing_was_done(topics)


def test_a_task_or_a_future_as_a_result_aborts_the_transaction(topics):
    async def main(process) -> None:
        with pytest.raises(TypeError, match=r"process returned a (Task|Future)"):
            processed(topics, process)

    asyncio.run(main(task))
    asyncio.run(main(lambda *_: asyncio.get_running_loop().create_future()))
    check_nothing_was_done(topics)


@pytest.mark.parametrize(
    "result", [None, 0, "done", b"done", [], [1], (1,), {}, range(3), object(), mock.MagicMock()]
)
def test_any_other_result_is_fine(topics, result):
    assert processed(topics, lambda producer, records: result) == 5


def test_a_thread_is_fine_once_it_has_ended(topics):
    def process(producer, records):
        thread = threading.Thread(target=producer.send, args=("out", b"sent"))
        thread.start()
        thread.join()
        return thread

    assert processed(topics, process) == 5
    assert values_of(topics, "out", 0) == [b"sent"]


def test_a_function_that_runs_its_coroutine_is_fine(topics):
    def process(producer, records):
        async def send():
            for record in records:
                producer.send("out", record.value)

        asyncio.run(send())

    assert processed(topics, process) == 5
    assert len(values_of(topics, "out", 0)) == 5


@pytest.mark.parametrize("stop", [*ASYNC_FUNCTIONS, *GENERATOR_FUNCTIONS, 5])
def test_stop_has_to_run_when_it_is_called(topics, stop):
    with pytest.raises(TypeError, match="stop must be"):
        processed(topics, lambda producer, records: None, stop=stop)
    with pytest.raises(TypeError, match="stop returned a coroutine"):
        processed(topics, lambda producer, records: None, stop=lambda: quiet())
    check_nothing_was_done(topics)


@pytest.mark.parametrize("function", [*ASYNC_FUNCTIONS, *GENERATOR_FUNCTIONS, 5])
@pytest.mark.parametrize("name", ["on_assigned", "on_revoked", "on_lost"])
def test_what_a_subscription_calls_has_to_run_when_it_is_called(topics, name, function, tmp_path):
    with topics.consumer(group=GROUP) as consumer:
        with pytest.raises(TypeError, match=f"{name} must be"):
            consumer.subscribe(["in"], **{name: function})
        assert consumer.subscription() == []
        with (
            Recorder(tmp_path / "history.jsonl") as recorder,
            pytest.raises(TypeError, match=f"{name} must be"),
        ):
            recorder.consumer(consumer).subscribe(["in"], **{name: function})

        async def main() -> None:
            async with (
                eoslog.aio.wrap(topics) as store,
                store.consumer(group=GROUP) as another,
            ):
                with pytest.raises(TypeError, match=f"{name} must be"):
                    await another.subscribe(["in"], **{name: function})

        asyncio.run(main())


@pytest.mark.parametrize("name", ["assigned", "revoked", "lost"])
def test_a_listeners_methods_have_to_run_when_they_are_called(topics, name):
    class Listener:
        def on_partitions_assigned(self, partitions): ...

        def on_partitions_revoked(self, partitions): ...

    setattr(Listener, f"on_partitions_{name}", coroutine_function)
    consumer = topics.consumer(group=GROUP)
    with pytest.raises(TypeError, match=f"on_partitions_{name} must be"):
        consumer.subscribe(["in"], listener=Listener())
    if name != "lost":
        delattr(Listener, f"on_partitions_{name}")
        with pytest.raises(TypeError, match=f"on_partitions_{name} must be"):
            consumer.subscribe(["in"], listener=Listener())


@pytest.mark.parametrize("function", RESULTS)
def test_what_a_subscription_called_and_did_not_run_is_raised_by_the_poll(
    topics, function, tmp_path
):
    with topics.consumer(group=GROUP) as consumer:
        consumer.subscribe(["in"], on_assigned=function)
        with pytest.raises(TypeError, match="on_assigned returned a"):
            consumer.poll(timeout=0)
        # As with any error of such a function the change stands.
        assert len(consumer.poll(timeout=0)) == 5
    with (
        Recorder(tmp_path / "history.jsonl") as recorder,
        recorder.consumer(topics.consumer(group=GROUP)) as recorded,
    ):
        recorded.subscribe(["in"], on_assigned=function)
        with pytest.raises(TypeError, match="on_assigned returned a"):
            recorded.poll(timeout=0)


@pytest.mark.parametrize("function", [*ASYNC_FUNCTIONS, *GENERATOR_FUNCTIONS, 5])
def test_recorders_and_verify_take_functions_that_run(topics, function, tmp_path):
    with pytest.raises(TypeError, match="identify must be"):
        Recorder(tmp_path / "history.jsonl", identify=function)
    with pytest.raises(TypeError, match="progress must be"):
        topics.verify(function)


@pytest.mark.parametrize("function", ASYNC_FUNCTIONS)
def test_an_event_loops_store_runs_no_async_function_in_a_thread(topics, function):
    async def main() -> None:
        async with eoslog.aio.wrap(topics) as store:
            with pytest.raises(TypeError, match="function must be"):
                await store.run(function)

    asyncio.run(main())


def test_blocks_of_the_other_kind_are_refused_and_nothing_is_begun(topics):
    producer = topics.producer(transactional_id="t")
    producer.init_transactions()

    async def main() -> None:
        with pytest.raises(TypeError):
            async with producer.transaction():
                pytest.fail("not to be entered")
        async with (
            eoslog.aio.wrap(topics) as store,
            store.producer(transactional_id="u") as another,
        ):
            await another.init_transactions()
            with pytest.raises(TypeError), another.transaction():
                pytest.fail("not to be entered")
            async with another.transaction():
                await another.send_and_wait("out", b"seen")

    asyncio.run(main())
    with producer.transaction():
        producer.send("out", b"seen too")
    assert values_of(topics, "out", 0) == [b"seen", b"seen too"]


def test_where_the_result_is_iterated_over_a_generator_function_is_right():
    for function in GENERATOR_FUNCTIONS:
        check_synchronous(function, "each_task", may_be_generator=True)
    for function in ASYNC_FUNCTIONS:
        with pytest.raises(TypeError, match="each_task must be a synchronous function"):
            check_synchronous(function, "each_task", may_be_generator=True)


def test_a_started_coroutine_of_the_callers_own_is_refused_too():
    coroutine = quiet()
    with pytest.raises(TypeError, match="process returned a coroutine"):
        check_ran(coroutine, "process")
    with pytest.raises(RuntimeError, match="already awaited"):
        asyncio.run(coroutine)
