"""Asynchronous transactions: all or nothing, and a cancelled end says which."""

import asyncio
from threading import Event

import pytest
from async_stores import (
    TIMEOUT_S,
    count_calls,
    fail_once,
    gated,
    replace,
    run_with_store,
    steps,
)
from stores import values_of

import eoslog
from eoslog import TopicPartition, TransactionalProducer
from eoslog.aio.calls import Calls
from eoslog.aio.rounds import Rounds
from eoslog.errors import (
    IllegalStateError,
    LogClosedError,
    OutOfMemoryError,
    ProducerFencedError,
    RecordTooLargeError,
    StoreFailedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from eoslog.producer.producer import ProducerInternals
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of

T0 = TopicPartition("t", 0)


async def transactional(store, name="x", **named):
    producer = await store.producer(transactional_id=name, **named)
    await producer.init_transactions()
    return producer


def with_producer(tmp_path, body):
    async def run(store):
        producer = await transactional(store)
        await body(store, producer)
        await producer.close()

    run_with_store(tmp_path / "s", run)


def test_a_block_commits_or_aborts(tmp_path):
    async def body(store, producer):
        assert producer.transactional_id == "x" and producer.outcome is None
        async with producer.transaction():
            told = [await producer.send("t", b"%d" % number) for number in range(3)]
        assert producer.outcome == "committed"
        assert [one.result().offset for one in told] == [0, 1, 2]
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as same:
                assert same is producer and producer.outcome is None
                await producer.send_and_wait("t", b"in the log")
                gathered = await producer.send("t", b"gathered")
                raise ZeroDivisionError
        assert producer.outcome == "aborted"
        with pytest.raises(TransactionAbortedError):
            await gathered
        assert values_of(store.store, "t") == [b"0", b"1", b"2"]

    with_producer(tmp_path, body)


@pytest.mark.parametrize("call", ["commit", "prepare", "send"])
def test_a_call_that_comes_after_the_timeout_aborts_the_transaction(tmp_path, call):
    async def body(store):
        producer = await transactional(store, transaction_timeout_ms=30)
        await producer.begin_transaction()
        await producer.send("t", b"late")
        await asyncio.sleep(0.2)
        with pytest.raises(ProducerFencedError, match="after its timeout of 30 ms"):
            if call == "commit":
                await producer.commit_transaction()
            elif call == "prepare":
                await producer.prepare_transaction()
            else:
                await producer.send_and_wait("t", b"later")
        assert producer.outcome == ("aborted" if call == "commit" else None)
        assert values_of(store.store, "t") == []
        assert store.store.describe_transaction("x").transaction_state == "CompleteAbort"
        await producer.close()

    run_with_store(tmp_path / "s", body)


def test_single_calls_and_their_order(tmp_path):
    async def body(store, producer):
        with pytest.raises(IllegalStateError):
            await producer.send("t", b"v")
        await producer.begin_transaction()
        with pytest.raises(IllegalStateError):
            await producer.begin_transaction()
        await producer.send("t", b"0")
        await producer.append("t", 0, [b"1", b"2"])
        await producer.flush()
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send("t", b"aborted")
        await producer.abort_transaction()
        with pytest.raises(IllegalStateError):
            await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"3")
            await producer.commit_transaction()
        async with producer.transaction():
            pass
        assert values_of(store.store, "t") == [b"0", b"1", b"2", b"3"]

    with_producer(tmp_path, body)


def test_a_commit_and_what_was_gathered_are_one_call(tmp_path):
    async def body(store, producer):
        calls = count_calls(Calls, "start")
        async with producer.transaction():
            for number in range(100):
                await producer.send("t", b"%d" % number)
        assert len(calls) == 1
        assert len(values_of(store.store, "t")) == 100

    with_producer(tmp_path, body)


def test_offsets_go_with_the_transaction(tmp_path):
    async def body(store, producer):
        await store.create_topic("in")
        async with store.producer() as plain:
            for number in range(4):
                await plain.send("in", b"%d" % number)
        where = TopicPartition("in", 0)
        async with store.consumer(group="g") as consumer:
            await consumer.assign([where])
            for count in (2, 2):
                records = await consumer.poll(max_records=count)
                async with producer.transaction():
                    for record in records:
                        await producer.send("t", record.value)
                    await producer.send_offsets_to_transaction(
                        {where: records[-1].offset + 1}, consumer.group_metadata()
                    )
            assert await consumer.committed(where) == 4
        assert values_of(store.store, "t") == [b"0", b"1", b"2", b"3"]

    with_producer(tmp_path, body)


def test_a_refused_record_keeps_the_transaction_from_being_committed(tmp_path):
    async def body(store, producer):
        await producer.begin_transaction()
        await producer.send("t", b"fine")
        wrong = await producer.send("t", bytes(2_000_000))
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        with pytest.raises(RecordTooLargeError):
            await wrong
        assert producer.outcome is None
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", bytes(2_000_000))
        assert producer.outcome == "aborted"
        async with producer.transaction():
            await producer.send("t", b"next")
        assert values_of(store.store, "t") == [b"next"]

    with_producer(tmp_path, body)


async def fail_a_record(producer, how):
    """Send two records, of which one is not appended; its failure is not awaited."""
    if how == "wrong":
        # What `send` cannot know of a batch.
        fail_once(ProducerInternals, "append_batch", ValueError("a wrong batch"))
    elif how == "not begun":
        fail_once(Calls, "start", OutOfMemoryError("no thread"))
    await producer.send("t", b"good")
    told = await producer.send("t", bytes(2_000_000) if how == "too large" else b"wrong")
    await asyncio.wait([told])


@pytest.mark.parametrize("how", ["wrong", "not begun", "too large"])
@pytest.mark.parametrize("end", ["commit_transaction", "prepare_transaction"])
def test_a_failed_record_keeps_its_transaction_from_ending_whoever_flushes(tmp_path, how, end):
    async def body(store, producer):
        await producer.begin_transaction()
        await fail_a_record(producer, how)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await producer.flush()
        with pytest.raises(TransactionAbortableError):
            await producer.flush()
        with pytest.raises(IllegalStateError):
            await producer.begin_transaction()
        await producer.send("t", b"other")
        for _ in range(2):
            with pytest.raises(TransactionAbortableError):
                await getattr(producer, end)()
        assert producer.outcome is None
        await producer.abort_transaction()
        await producer.flush()
        async with producer.transaction():
            await producer.send("t", b"next")
        assert values_of(store.store, "t") == [b"next"]

    with_producer(tmp_path, body)


def test_an_abort_that_cannot_begin_keeps_what_it_gave_up_from_being_left_out(tmp_path):
    async def body(store, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"in the log")
        gathered = await producer.send("t", b"given up")
        fail_once(Calls, "start", OutOfMemoryError("no thread"))
        with pytest.raises(OutOfMemoryError):
            await producer.abort_transaction()
        with pytest.raises(TransactionAbortedError):
            await gathered
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert values_of(store.store, "t") == []

    with_producer(tmp_path, body)


def test_a_record_that_fails_while_a_begin_returns_keeps_its_transaction_from_ending(tmp_path):
    async def body(store, producer):
        begun, go_on = Event(), Event()

        def begin_slowly(begin, one):
            begin(one)
            begun.set()
            assert go_on.wait(TIMEOUT_S)

        replace(TransactionalProducer, "begin_transaction", begin_slowly)
        gate = gated(TransactionalProducer, "flush")
        flushing = asyncio.create_task(producer.flush())  # So that a thread begins it.
        await gate.until_begun()
        beginning = asyncio.create_task(producer.begin_transaction())
        await steps()
        gate.go_on.set()
        await asyncio.to_thread(begun.wait, TIMEOUT_S)
        wrong = await producer.send("t", bytes(2_000_000))
        go_on.set()
        await asyncio.gather(flushing, beginning)
        assert isinstance(wrong.exception(), RecordTooLargeError)
        await producer.send("t", b"other")
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert values_of(store.store, "t") == []

    with_producer(tmp_path, body)


def test_a_begin_that_is_refused_changes_nothing_for_the_open_transaction(tmp_path):
    async def body(store, producer):
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send("t", b"v")
                begin = asyncio.create_task(producer.begin_transaction())
                await asyncio.sleep(0)
                raise ZeroDivisionError
        with pytest.raises(IllegalStateError):
            await begin
        assert producer.outcome == "aborted"
        gate = gated(TransactionalProducer, "commit_transaction")
        await producer.begin_transaction()
        await producer.send("t", b"w")
        commit = asyncio.create_task(producer.commit_transaction())
        await gate.until_begun()
        begin = asyncio.create_task(producer.begin_transaction())
        await steps()
        begin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begin
        gate.go_on.set()
        await commit
        assert producer.outcome == "committed"
        assert values_of(store.store, "t") == [b"w"]

    with_producer(tmp_path, body)


def test_a_begin_that_was_cancelled_does_not_tell_of_the_transaction_before(tmp_path):
    async def body(store, producer):
        async with producer.transaction():
            await producer.send("t", b"old")
        gate = gated(TransactionalProducer, "flush")
        busy = asyncio.create_task(producer.flush())
        await gate.until_begun()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), producer.transaction():
                pytest.fail("it was begun")
        assert producer.outcome is None
        gate.go_on.set()
        await busy

    with_producer(tmp_path, body)


def test_a_block_knows_its_own_outcome_whoever_begins_another(tmp_path):
    async def body(store):
        producer = await transactional(store)
        block = producer.transaction()
        assert block.outcome is None
        async with block:
            await producer.send("t", b"v")
        async with producer.transaction():
            assert (block.outcome, producer.outcome) == ("committed", None)
        await transactional(store)
        with pytest.raises(ProducerFencedError):
            await producer.begin_transaction()
        assert (block.outcome, producer.outcome) == ("committed", None)

    run_with_store(tmp_path / "s", body)


@pytest.mark.parametrize("cancelled", [True, False])
def test_records_keep_their_place_before_columns_when_a_commit_follows(tmp_path, cancelled):
    async def body(store, producer):
        await producer.begin_transaction()
        gate = gated(TransactionalProducer, "append")
        appends = [asyncio.create_task(producer.append("t", 0, [b"0"]))]
        await gate.until_begun()
        await producer.send("t", b"1")
        if not cancelled:
            appends.append(asyncio.create_task(producer.append("t", 0, [b"2"])))
            await steps()
        commit = asyncio.create_task(producer.commit_transaction())
        await steps()
        if cancelled:
            appends.append(asyncio.create_task(producer.append("t", 0, [b"2"])))
            await steps()
            commit.cancel()
        gate.go_on.set()
        await asyncio.wait([*appends, commit])
        if cancelled:
            await producer.commit_transaction()
        assert values_of(store.store, "t") == [b"0", b"1", b"2"]

    with_producer(tmp_path, body)


def test_records_are_refused_until_every_end_that_waits_is_over(tmp_path):
    async def body(store, producer):
        await producer.begin_transaction()
        gate = gated(TransactionalProducer, "append")
        appending = asyncio.create_task(producer.append("t", 0, [b"0"]))
        await gate.until_begun()
        commits = [asyncio.create_task(producer.commit_transaction()) for _ in range(2)]
        await steps()
        commits[0].cancel()
        await steps()
        with pytest.raises(IllegalStateError, match="being ended"):
            await producer.send("t", b"late")
        gate.go_on.set()
        await asyncio.gather(appending, commits[1])
        assert values_of(store.store, "t") == [b"0"]

    with_producer(tmp_path, body)


def test_a_task_that_is_cancelled_in_a_block_aborts(tmp_path):
    async def body(store, producer):
        async def write():
            async with producer.transaction():
                await producer.send_and_wait("t", b"v")
                await asyncio.sleep(60)

        task = asyncio.create_task(write())
        while store.store.partition("t", 0).log_end_offset == 0:
            await asyncio.sleep(0.001)
        await steps()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert producer.outcome == "aborted"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), producer.transaction():
                await asyncio.sleep(60)
        assert producer.outcome == "aborted"
        async with producer.transaction():
            await producer.send("t", b"next")
        assert values_of(store.store, "t") == [b"next"]

    with_producer(tmp_path, body)


def test_a_commit_under_way_ends_and_says_so(tmp_path):
    async def body(store, producer):
        gate = gated(TransactionalProducer, "commit_transaction")

        async def write():
            async with producer.transaction():
                await producer.send("t", b"v")

        task = asyncio.create_task(write())
        await gate.until_begun()
        for _ in range(3):
            task.cancel()
            await steps()
        assert not task.done()
        with pytest.raises(IllegalStateError, match="being ended"):
            await producer.send("t", b"late")
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert caught.value.__notes__ == ["the transaction is committed"]
        assert producer.outcome == "committed"
        assert values_of(store.store, "t") == [b"v"]

    with_producer(tmp_path, body)


def test_a_timeout_around_a_commit_keeps_what_became_of_it(tmp_path):
    async def body(store, producer):
        gate = gated(TransactionalProducer, "commit_transaction")
        limit = asyncio.timeout(None)

        async def be_over_in_the_commit():
            await gate.until_begun()
            limit.reschedule(0)
            while not limit.expired():
                await steps()
            gate.go_on.set()

        over = asyncio.create_task(be_over_in_the_commit())
        with pytest.raises(TimeoutError) as caught:
            async with limit, producer.transaction():
                await producer.send("t", b"v")
        await over
        assert caught.value.__cause__.__notes__ == ["the transaction is committed"]
        assert producer.outcome == "committed"

    with_producer(tmp_path, body)


def test_a_commit_that_was_not_begun_leaves_the_transaction_open(tmp_path):
    async def body(store, producer):
        await producer.begin_transaction()
        gate = gated(TransactionalProducer, "append")
        appending = asyncio.create_task(producer.append("t", 0, [b"0"]))
        await gate.until_begun()
        told = await producer.send("t", b"1")
        commit = asyncio.create_task(producer.commit_transaction())
        await steps()
        commit.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await commit
        assert caught.value.__notes__ == ["the call was not begun: nothing was done"]
        assert producer.outcome is None
        gate.go_on.set()
        await appending
        assert (await told).offset == 1, "what was gathered is appended all the same"
        await producer.commit_transaction()
        assert values_of(store.store, "t") == [b"0", b"1"]

    with_producer(tmp_path, body)


def test_a_block_whose_commit_was_not_begun_is_aborted(tmp_path):
    async def body(store, producer):
        gate = gated(TransactionalProducer, "append")

        async def write():
            async with producer.transaction():
                asyncio.create_task(producer.append("t", 0, [b"0"])).add_done_callback(
                    lambda done: done.exception()
                )
                await gate.until_begun()

        task = asyncio.create_task(write())
        await gate.until_begun()
        await asyncio.sleep(0.01)
        task.cancel()
        await steps()
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert producer.outcome == "aborted"
        assert values_of(store.store, "t") == []

    with_producer(tmp_path, body)


@pytest.mark.parametrize("waiting", [True, False])
def test_a_begin_that_fails_does_not_tell_of_the_transaction_before(tmp_path, waiting):
    async def body(store):
        producer = await transactional(store)
        async with producer.transaction():
            await producer.send("t", b"old")
        assert producer.outcome == "committed"
        await transactional(store)
        busy = asyncio.create_task(producer.flush()) if waiting else None
        await steps()
        with pytest.raises(ProducerFencedError):
            async with producer.transaction():
                pytest.fail("it was begun")
        assert producer.outcome is None
        if busy is not None:
            await asyncio.gather(busy, return_exceptions=True)

    run_with_store(tmp_path / "s", body)


def test_a_fenced_producer_writes_nothing(tmp_path):
    async def body(store):
        producer = await transactional(store)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"old")
        successor = await transactional(store)
        with pytest.raises(ProducerFencedError):
            await producer.send_and_wait("t", b"late")
        with pytest.raises(ProducerFencedError):
            await producer.commit_transaction()
        assert producer.outcome is None
        async with successor.transaction():
            await successor.send("t", b"new")
        await producer.close()
        assert values_of(store.store, "t") == [b"new"]

    run_with_store(tmp_path / "s", body)


@pytest.mark.parametrize(("in_doubt", "outcome"), [(True, "unknown"), (False, None)])
def test_a_failed_disk_at_the_decision_leaves_it_unknown(tmp_path, in_doubt, outcome):
    async def body(store):
        producer = await transactional(store)
        await producer.begin_transaction()
        await producer.send("t", b"v")

        def fail(_, one):
            in_state = property(lambda log: in_doubt and log.topic != "t")
            replace(UnifiedLog, "failed", in_state)
            ProducerInternals(one).transactions.commit_failed(StoreFailedError("the disk is gone"))

        replace(TransactionalProducer, "commit_transaction", fail)
        with pytest.raises((StoreFailedError, TransactionAbortableError)):
            await producer.commit_transaction()
        assert producer.outcome == outcome

    run_with_store(tmp_path / "s", body)


def test_prepared_transactions(tmp_path):
    async def body(store, producer):
        await producer.begin_transaction()
        await producer.send("t", b"v")
        prepared = await producer.prepare_transaction()
        assert producer.outcome is None
        assert await producer.complete_transaction(prepared) is True
        assert producer.outcome == "committed"
        await producer.begin_transaction()
        await producer.send("t", b"w")
        await producer.prepare_transaction()
        assert await producer.complete_transaction(None) is False
        assert producer.outcome == "aborted"
        assert values_of(store.store, "t") == [b"v"]

    with_producer(tmp_path, body)


def test_closing_aborts_the_open_transaction(tmp_path):
    async def body(store):
        async with store.producer(transactional_id="x") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            gathered = await producer.send("t", b"v")
        with pytest.raises(TransactionAbortedError):
            await gathered
        await producer.close()
        assert values_of(store.store, "t") == []

    run_with_store(tmp_path / "s", body)


def test_many_producers_commit_together(tmp_path):
    async def body(store):
        producers = [await transactional(store, f"x{number}") for number in range(16)]

        async def write(number):
            for one in range(20):
                async with producers[number].transaction():
                    await producers[number].send("t", b"%d:%d" % (number, one))

        await asyncio.gather(*(write(number) for number in range(16)))
        values = values_of(store.store, "t")
        assert len(values) == 320
        for number in range(16):
            mine = [one for one in values if one.startswith(b"%d:" % number)]
            assert mine == [b"%d:%d" % (number, one) for one in range(20)]

    run_with_store(tmp_path / "s", body)


def test_a_cancelled_prepare_aborts_its_block(tmp_path):
    """Nobody has the answer by which it could be completed."""

    async def body(store, producer):
        gate = gated(TransactionalProducer, "prepare_transaction")

        async def write():
            async with producer.transaction():
                await producer.send("t", b"v")
                await producer.prepare_transaction()

        task = asyncio.create_task(write())
        await gate.until_begun()
        task.cancel()
        await steps()
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert producer.outcome == "aborted"
        (found,) = store.store.transactions()
        assert found.transaction_state == "CompleteAbort"
        async with producer.transaction():
            await producer.send("t", b"next")
        assert values_of(store.store, "t") == [b"next"]

    with_producer(tmp_path, body)


def test_a_block_that_fails_behind_its_prepare_stays_prepared(tmp_path):
    """Whoever was given the answer may have handed it on."""

    async def body(store, producer):
        with pytest.raises(ValueError, match="behind"):
            async with producer.transaction():
                await producer.send("t", b"v")
                prepared = await producer.prepare_transaction()
                raise ValueError("behind it")
        assert producer.outcome is None
        assert await producer.complete_transaction(prepared) is True
        assert values_of(store.store, "t") == [b"v"]

    with_producer(tmp_path, body)


def test_a_cancelled_prepare_outside_of_a_block_notes_its_answer(tmp_path):
    async def body(store, producer):
        gate = gated(TransactionalProducer, "prepare_transaction")
        await producer.begin_transaction()
        await producer.send("t", b"v")
        task = asyncio.create_task(producer.prepare_transaction())
        await gate.until_begun()
        task.cancel()
        await steps()
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        (note,) = caught.value.__notes__
        answer = note.removeprefix("the transaction is prepared: ")
        assert await producer.complete_transaction(answer) is True
        assert producer.outcome == "committed"
        assert values_of(store.store, "t") == [b"v"]

    with_producer(tmp_path, body)


@pytest.mark.parametrize("commit", [True, False])
def test_a_cancelled_completion_says_what_became_of_it(tmp_path, commit):
    async def body(store, producer):
        await producer.begin_transaction()
        await producer.send("t", b"v")
        prepared = await producer.prepare_transaction()
        gate = gated(TransactionalProducer, "complete_transaction")
        task = asyncio.create_task(producer.complete_transaction(prepared if commit else None))
        await gate.until_begun()
        task.cancel()
        await steps()
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        became = "committed" if commit else "aborted"
        assert caught.value.__notes__ == [f"the transaction is {became}"]
        assert producer.outcome == became
        assert values_of(store.store, "t") == ([b"v"] if commit else [])

    with_producer(tmp_path, body)


def interrupted_once(gate):
    """The next end of a transaction is begun, and then an interrupt comes out of its own step."""
    alone = []

    async def cut(finish, *arguments, **named):
        ending = finish(*arguments, **named)
        if alone:
            return await ending
        alone.append(asyncio.ensure_future(ending))
        await gate.until_begun()
        asyncio.get_running_loop().call_later(0.02, gate.go_on.set)
        raise KeyboardInterrupt

    replace(Rounds, "finish", cut)


def test_a_block_whose_begun_commit_was_interrupted_is_committed(tmp_path):
    """Its commit ends all the same, and the block waits for that before it aborts anything."""

    async def body(store, producer):
        gate = gated(TransactionalProducer, "commit_transaction")
        with pytest.raises(KeyboardInterrupt):
            async with producer.transaction():
                await producer.send("t", b"v")
                interrupted_once(gate)
        assert producer.outcome == "committed"
        assert values_of(store.store, "t") == [b"v"]

    with_producer(tmp_path, body)


def test_a_commit_whose_caller_is_gone_says_what_became_of_it(tmp_path):
    async def body(store, producer):
        gate = gated(TransactionalProducer, "commit_transaction")
        await producer.begin_transaction()
        await producer.send("t", b"v")
        interrupted_once(gate)
        with pytest.raises(KeyboardInterrupt):
            await producer.commit_transaction()
        assert producer.outcome is None
        await producer.close()
        assert producer.outcome == "committed"
        assert values_of(store.store, "t") == [b"v"]

    with_producer(tmp_path, body)


def test_a_begin_whose_caller_is_gone_leaves_the_outcome_of_the_one_before(tmp_path):
    async def body(store, producer):
        block = producer.transaction()
        async with block:
            await producer.send("t", b"v")

        def begin_and_interrupt(begin, *given):
            begin(*given)
            raise KeyboardInterrupt

        replace(TransactionalProducer, "begin_transaction", begin_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            await producer.begin_transaction()
        await producer.close()
        assert block.outcome == "committed"
        assert producer.outcome == "aborted"
        assert values_of(store.store, "t") == [b"v"]

    with_producer(tmp_path, body)


def test_closing_says_that_the_open_transaction_is_aborted(tmp_path):
    async def body(store, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"v")
        await producer.close()
        assert producer.outcome == "aborted"
        assert values_of(store.store, "t") == []

    with_producer(tmp_path, body)


@pytest.mark.parametrize("closed", ["producer", "store", "store in a thread"])
def test_a_block_that_a_close_ended_does_not_end_as_if_it_had_committed(tmp_path, closed):
    async def body(store):
        producer = await transactional(store)

        async def block():
            async with producer.transaction():
                await producer.send_and_wait("t", b"v")
                begun.set()
                await over.wait()

        begun, over = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(block())
        await begun.wait()
        if closed == "producer":
            await producer.close()
        elif closed == "store":
            await store.close()
        else:
            await asyncio.to_thread(store.store.close)
        over.set()
        with pytest.raises(LogClosedError):
            await task
        assert producer.outcome != "committed"

    run_with_store(tmp_path / "s", body)
    with eoslog.open(tmp_path / "s") as store:
        assert values_of(store, "t") == []


def test_a_block_that_committed_itself_ends_whoever_closes(tmp_path):
    async def body(store, producer):
        async with producer.transaction():
            await producer.send_and_wait("t", b"v")
            await producer.commit_transaction()
            await producer.close()
        assert producer.outcome == "committed"
        assert values_of(store.store, "t") == [b"v"]

    with_producer(tmp_path, body)


def test_a_block_may_abort_itself(tmp_path):
    async def body(store, producer):
        async with producer.transaction():
            await producer.send_and_wait("t", b"v")
            await producer.abort_transaction()
        assert producer.outcome == "aborted"
        assert values_of(store.store, "t") == []

    with_producer(tmp_path, body)


@pytest.mark.parametrize("way", ["send", "append"])
def test_the_marker_of_a_commit_makes_a_checkpoint_due(tmp_path, way):
    async def body(store, producer):
        partition = engine_of(store.store).partition("t", 0)
        async with producer.transaction():
            if way == "send":
                await producer.send_and_wait("t", b"v")
            else:
                await producer.append("t", 0, [b"v"])
            changed = []
            partition.watch_changes(changed.append)  # A checkpoint is made of the record.
        assert changed == [partition]

    with_producer(tmp_path, body)
