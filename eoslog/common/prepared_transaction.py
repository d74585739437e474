"""A transaction that waits for a decision from outside: who keeps this can make it."""

import re
from dataclasses import dataclass

# Kafka's text form: two whole numbers, both 0 or more, without a sign or a leading zero.
_TOKEN = re.compile(r"(0|[1-9][0-9]{0,18}):(0|[1-9][0-9]{0,4})", re.ASCII)
_PRODUCER_ID_MAX = 2**63 - 1
_PRODUCER_EPOCH_MAX = 2**15 - 1


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """Prepared transaction, as `Producer.prepare_transaction` returns it. It can be pickled, or
    kept as text.

    All three are needed to decide: `store.commit_prepared([...])` or `store.abort_prepared([...])`.
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
        """Return the transaction that a token of this transactional id stands for; "" stands for
        none.

        Raises TypeError, or ValueError for any other text.
        """
        if token == "":
            return None
        return cls(transactional_id, *parse_token(token))


def parse_token(token: str) -> tuple[int, int]:
    """The producer id and epoch of a token. TypeError, or ValueError if the text is not one."""
    if not isinstance(token, str):
        raise TypeError(f"a token is a str, not {type(token).__name__}")
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ValueError(f"token {token!r:.80}: not of the form producer id:epoch")
    producer_id, producer_epoch = int(found[1]), int(found[2])
    if producer_id > _PRODUCER_ID_MAX or producer_epoch > _PRODUCER_EPOCH_MAX:
        raise ValueError(f"token {token!r}: a number is too large")
    return producer_id, producer_epoch
