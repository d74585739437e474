"""What carried a consumer over an offset last, and from where a move did."""

from __future__ import annotations

import random

from eoslog.checking.consumer_path import ConsumerPath


def test_nobody_knows_where_it_stands_at_first() -> None:
    assert ConsumerPath().moved_from(7) == -1


def test_a_move_goes_from_where_polls_for_transactions_ended() -> None:
    path = ConsumerPath()
    path.poll(0, 2, taken=True)
    path.poll(2, 4, taken=False)
    assert path.moved_from(4) is None
    path.move(6)
    assert (path.moved_from(6), path.moved_from(4), path.moved_from(2)) == (2, 2, None)
    assert path.moved_from(7) is None


def test_a_place_that_nobody_knows_may_be_any() -> None:
    path = ConsumerPath()
    path.poll(0, 2, taken=True)
    path.move(-1)
    assert path.moved_from(100) == 2
    path.poll(5, 6, taken=True)
    assert (path.moved_from(5), path.moved_from(6)) == (2, None)


def test_the_last_step_over_an_offset_counts() -> None:
    """Held against a list that has, for each offset, what carried the consumer over it."""
    for seed in range(300):
        noise = random.Random(seed)
        path, stands, over = ConsumerPath(), 0, [True] * 10
        path.move(0)
        for _ in range(12):
            to = noise.randrange(10)
            moved = to < stands or noise.random() < 0.5
            if moved:
                path.move(to)
            else:
                path.poll(stands, to, taken=True)
            over[stands + 1 : to + 1] = [moved] * (to - stands)
            stands = to
        found = [path.moved_from(offset) is not None for offset in range(10)]
        assert found == [over[offset] and offset <= stands for offset in range(10)]
