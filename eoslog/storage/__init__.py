"""Partitions and their producers, the topic registry, checkpoints, LMDB, the clean close."""
