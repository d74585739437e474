"""Transaction that waits for a decision from outside: the holder of its numbers can decide it."""

import re
from dataclasses import dataclass

# Kafka's text form: two whole numbers, both 0 or more, without a sign or a leading zero.
_TOKEN = re.compile(r"(0|[1-9][0-9]{0,18}):(0|[1-9][0-9]{0,4})", re.ASCII)
_PRODUCER_ID_MAX = 2**63 - 1
_PRODUCER_EPOCH_MAX = 2**15 - 1


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """Prepared transaction, as `Producer.prepare_transaction` returns it. Can be pickled.

    All three numbers are needed to decide it: `store.commit_prepared([...])` or
    `store.abort_prepared([...])`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def token(self) -> str:
        """Kafka's text form, "producer id:epoch"; it does not name the transactional id."""
        return f"{self.producer_id}:{self.producer_epoch}"

    def __str__(self) -> str:
        return self.token

    @classmethod
    def parse(cls, transactional_id: str, token: str) -> "PreparedTransaction | None":
        """Return the transaction of a token of this transactional id; None for an empty token.

        Raises
        ------
        TypeError, ValueError
            The token is no text, or not of the form "producer id:epoch".
        """
        if token == "":
            return None
        return cls(transactional_id, *parse_token(token))


def parse_token(token: str) -> tuple[int, int]:
    """Return the producer id and epoch of a token. Raises TypeError, ValueError."""
    if not isinstance(token, str):
        raise TypeError(f"token must be a str, got {type(token).__name__}")
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ValueError(f"token must be <producer id>:<epoch>, got {token!r:.80}")
    producer_id, producer_epoch = int(found[1]), int(found[2])
    if producer_id > _PRODUCER_ID_MAX or producer_epoch > _PRODUCER_EPOCH_MAX:
        raise ValueError(f"token {token!r} has a number that is too large")
    return producer_id, producer_epoch
