"""What carried a consumer over an offset last, and from where a move did."""

from __future__ import annotations

import random

from eoslog.checking.offset_divergence import ConsumerPath


def moved(path: ConsumerPath, lower: int = 0, upper: int = 1000) -> list[tuple[int, int]]:
    return list(path.moved_between(lower, upper))


def test_nobody_knows_where_it_stands_at_first() -> None:
    assert moved(ConsumerPath(), 3, 7) == [(3, 7)]


def test_a_move_goes_from_where_polls_for_transactions_ended() -> None:
    path = ConsumerPath()
    path.poll(0, 2, taken=True)
    path.poll(2, 4, taken=False)
    assert moved(path) == []
    path.move(6)
    assert moved(path) == [(2, 6)]
    assert (moved(path, 3, 5), moved(path, 0, 3), moved(path, 6, 9)) == ([(3, 5)], [(2, 3)], [])
    path.poll(6, 7, taken=True)
    path.move(9)
    assert moved(path, 1) == [(2, 6), (7, 9)]


def test_a_look_ahead_that_was_taken_back_moves_it_over_nothing() -> None:
    path = ConsumerPath()
    path.poll(0, 5, taken=True)
    path.move(20)
    path.poll(20, 21, taken=False)
    path.move(5)
    assert moved(path) == []
    path.poll(5, 8, taken=False)
    path.poll(8, 30, taken=True)
    assert moved(path) == []


def test_a_place_that_nobody_knows_may_be_any() -> None:
    path = ConsumerPath()
    path.poll(0, 2, taken=True)
    path.move(-1)
    assert moved(path, 0, 100) == [(2, 100)]
    path.poll(5, 6, taken=True)
    assert moved(path) == [(2, 5)]


def test_the_last_step_over_an_offset_counts() -> None:
    """Held against a list that has, for each offset, what carried the consumer over it."""
    for seed in range(300):
        noise = random.Random(seed)
        path, stands, over = ConsumerPath(), 0, [True] * 10
        path.move(0)
        for _ in range(12):
            to = noise.randrange(10)
            by_move = to < stands or noise.random() < 0.5
            if by_move:
                path.move(to)
            else:
                path.poll(stands, to, taken=True)
            over[stands + 1 : to + 1] = [by_move] * (to - stands)
            stands = to
        found = [moved(path, offset - 1, offset) != [] for offset in range(1, 10)]
        assert found == [over[offset] and offset <= stands for offset in range(1, 10)]
