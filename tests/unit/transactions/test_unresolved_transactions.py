"""What could not be put right is known to all processes of a session."""

from __future__ import annotations

import threading

import pytest

from eoslog.common.topic_partition import TopicPartition
from eoslog.transactions.unresolved_transactions import FILE_NAME, Decision, UnresolvedTransactions

SESSION = bytes(range(16))
A, B = TopicPartition("a", 0), TopicPartition("b", 3)
DECISION = Decision(True, 6, True, 17, 1234)


def test_what_one_notes_the_others_read(tmp_path):
    one, other = (UnresolvedTransactions(tmp_path, SESSION) for _ in range(2))
    assert one.read() == {}
    one.note(A, {})
    other.note(B, {(7, 5): DECISION, (8, 0): Decision(False, 1, True, 3, 4)})
    assert one.read() == other.read()
    assert one.read() == {A: {}, B: {(7, 5): DECISION, (8, 0): Decision(False, 1, True, 3, 4)}}
    one.note(A, {(7, 5): DECISION})
    assert other.read()[A] == {(7, 5): DECISION}
    other.forget(A)
    other.forget(A)
    assert list(one.read()) == [B]


def test_the_file_of_another_session_says_nothing(tmp_path):
    UnresolvedTransactions(tmp_path, SESSION).note(A, {})
    later = UnresolvedTransactions(tmp_path, bytes(16))
    assert later.read() == {}
    later.note(B, {})
    assert list(later.read()) == [B]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"session": 1}', b"\xff"])
def test_a_broken_file_says_nothing(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    unresolved = UnresolvedTransactions(tmp_path, SESSION)
    assert unresolved.read() == {}
    unresolved.note(A, {})
    assert list(unresolved.read()) == [A]


def test_nobody_overwrites_what_another_notes(tmp_path):
    def note_all(number):
        unresolved = UnresolvedTransactions(tmp_path, SESSION)
        for index in range(20):
            unresolved.note(TopicPartition(f"t{number}", index), {})

    threads = [threading.Thread(target=note_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(UnresolvedTransactions(tmp_path, SESSION).read()) == 80


def test_that_producer_ids_are_renewed_stays_known(tmp_path):
    one, other = (UnresolvedTransactions(tmp_path, SESSION) for _ in range(2))
    one.note(A, {})
    assert not other.renews()
    one.note_renewal()
    assert other.renews()
    assert list(other.read()) == [A]
    other.forget(A)
    assert one.renews()
    assert not UnresolvedTransactions(tmp_path, bytes(16)).renews()
