"""Stores for tests: the parts of the pytest plugin `pytest_eoslog`.

`docs/testing.md` shows their use.
"""
