"""Under which producer id and epoch a transactional id goes on: the rules of its initialization.

Invariant: the answer is never one that another producer of the id may still write with, but where
the same producer asks again for an answer that it did not get.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from eoslog.errors import ProducerFencedError

EPOCH_EXHAUSTED = 32_766  # The last epoch a producer is given; one more fences it.
EPOCH_MAX = 32_767  # Only of markers; nobody writes with it.
NO_EPOCH = -1
NO_PRODUCER_ID = -1


class KnownIdentity(Protocol):
    """Identity of a transactional id, as the coordinator knows it."""

    @property
    def transactional_id(self) -> str: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def last_producer_epoch(self) -> int: ...
    @property
    def previous_producer_id(self) -> int: ...


class NextIdentity(NamedTuple):
    """Identity in the next record of the id. `last_producer_epoch`: a producer that shows it asks
    again.
    """

    producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    previous_producer_id: int


def check_expected(known: KnownIdentity, expected: tuple[int, int], is_ongoing: bool) -> None:
    """Check that a producer with this id and epoch may go on as the newest one.

    Raises ProducerFencedError; nothing was changed. With a transaction open only its own producer
    may: an older one would abort it.
    """
    producer_id, epoch = expected
    if known.producer_epoch == NO_EPOCH:
        return  # The store had forgotten the id.
    current = producer_id == known.producer_id and epoch == known.producer_epoch
    asked_again = epoch == known.last_producer_epoch != NO_EPOCH and not is_ongoing
    if producer_id != known.producer_id:
        # The producer id was rotated, and the answer got lost.
        rotated = producer_id == known.previous_producer_id and epoch >= EPOCH_EXHAUSTED
        asked_again = asked_again and rotated
    if not current and not asked_again:
        raise ProducerFencedError(
            f"transactional id {known.transactional_id!r}: producer id {producer_id} with epoch "
            f"{epoch} is not the newest, which is {known.producer_id} with epoch "
            f"{known.producer_epoch}"
        )


def next_identity(
    known: KnownIdentity,
    expected_epoch: int | None,
    take_id: Callable[[], int],
    renews: bool = False,
) -> NextIdentity:
    """Return the next identity of an id with nothing open; `expected_epoch` was checked.

    Without one the last epoch is forgotten, so that no older producer passes for the same one.
    `renews`: the producer id is rotated though its epochs are not used up.
    """
    epoch, previous = known.producer_epoch, known.previous_producer_id
    if known.producer_id == NO_PRODUCER_ID:
        return NextIdentity(take_id(), 0, NO_EPOCH, NO_PRODUCER_ID)
    if expected_epoch is not None and expected_epoch != epoch and not renews:
        return NextIdentity(known.producer_id, epoch, known.last_producer_epoch, previous)
    last_epoch = NO_EPOCH if expected_epoch is None else epoch
    if epoch >= EPOCH_EXHAUSTED or renews:
        return NextIdentity(take_id(), 0, last_epoch, known.producer_id)
    return NextIdentity(known.producer_id, epoch + 1, last_epoch, previous)
