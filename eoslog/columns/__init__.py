"""Columns of records on their way to the partitions of a topic, and out as Arrow."""
