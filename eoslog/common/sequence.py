"""Kafka's sequence numbers: 31 bits, from 0 to 2**31 - 1 and then from 0 again."""

SEQUENCE_MAX = 2**31 - 1
NO_SEQUENCE = -1


def records_between(older_last_sequence: int, last_sequence: int) -> int:
    """Return how many records follow the older of two last sequences of one epoch, up to the newer.

    True as long as they are fewer than 2**31.
    """
    if older_last_sequence == NO_SEQUENCE:
        return last_sequence + 1
    return (last_sequence - older_last_sequence) & SEQUENCE_MAX
