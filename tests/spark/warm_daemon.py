"""Spark's daemon of Python workers, which imports first what every worker needs.

A worker is a fork of it. Otherwise each one imports these itself, and pyspark from a zip file,
whose modules Python compiles at every import.
"""

import sys

sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]

import pandas  # noqa: E402, F401
import pyarrow  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

import eoslog.spark  # noqa: E402, F401

if __name__ == "__main__":
    manager()
