"""Limits of topics for columns of records, and record batches of Arrow."""
