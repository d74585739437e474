"""Verification, repair and dumps of a store's files."""
