"""Staged jobs: files that tasks write, and the decision that adopts them into the log."""
