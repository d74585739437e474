"""A commit that was interrupted (Ctrl-C) holds nobody back once its producer is closed."""

import pytest
from crash.interrupted_lines import interrupted_at
from short_form import short_form

import eoslog
from eoslog import TopicPartition
from eoslog.store.store import parts_of

FILES = (
    "/eoslog/producer/transactional_producer.py",
    "/eoslog/producer/producer.py",
    "/eoslog/producer/transaction_manager.py",
    "/eoslog/producer/transaction_states.py",
    "/eoslog/transactions/coordinator.py",
    "/eoslog/storage/opened_partitions.py",
    "/eoslog/storage/log_opener.py",
)
INPUT = TopicPartition("in", 0)


def is_ours(frame):
    return frame.f_code.co_filename.endswith(FILES)


@pytest.mark.parametrize("is_prepared", short_form([False, True], False))
def test_closing_ends_what_an_interrupted_commit_left(tmp_path, is_prepared):
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        parts_of(store).checkpointer.stop()  # Nobody else ends it.
        store.create_topic("in")
        line, was_cut, committed, undone, left = 0, True, 0, 0, 0
        while was_cut:
            line += 1
            topic = f"out{line}"
            store.create_topic(topic)  # Its partition is opened by the commit itself.
            producer = store.producer(transactional_id=f"loop {line}")
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_offsets_to_transaction({INPUT: line}, "group")
            producer.send(topic, b"one")
            if is_prepared:
                prepared = producer.prepare_transaction()
            with interrupted_at(line, is_ours) as seen:
                try:
                    producer.commit_transaction()
                    was_cut = False
                except KeyboardInterrupt:
                    pass
            producer.close()
            consumer = store.consumer(group="group")
            consumer.assign([TopicPartition(topic, 0)])
            states = {one.transactional_id: one.transaction_state for one in store.transactions()}
            if is_prepared and states[f"loop {line}"] == "Ongoing":
                left += 1  # It may have been committed outside: somebody else decides.
                store.commit_prepared([prepared])
            offset = consumer.committed(INPUT)
            values = [record.value for record in consumer.poll(0)]
            assert values in ([], [b"one"]), seen[-1]
            assert (values == [b"one"]) == (offset == line), seen[-1]
            committed += values == [b"one"]
            undone += values == []
            store.delete_topic(topic)  # Else the next ones have to go over it.
        assert not store.verify()
    assert committed
    if is_prepared:
        assert left > 3
    else:
        assert undone > 3
