"""The processes that have a store open: its locks, slots, paths and wake-ups."""
