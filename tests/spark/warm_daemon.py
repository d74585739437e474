"""Spark's daemon of Python workers, which imports first what every worker needs.

A worker is a fork of it. Otherwise each one imports these itself.
"""

from eoslog.spark.worker_daemon import prefer_installed

prefer_installed()

import pandas  # noqa: E402, F401
import pyarrow  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

if __name__ == "__main__":
    manager()
