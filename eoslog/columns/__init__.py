"""Columns of records: their partitions, and record batches of Arrow."""
