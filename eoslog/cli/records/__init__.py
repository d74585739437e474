"""Commands that print the records of topics, and that write records."""
