"""Consumers: positions, subscription, fetches, the records of a poll."""
