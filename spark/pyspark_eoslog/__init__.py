"""Package through which Spark finds the format `eoslog` without `register()`.

On the first look-up of a Python data source Spark imports every top-level package whose name begins
with `pyspark_`, in every session, whichever format is wanted. So this import is light, and it never
fails: where eoslog cannot be used there is no `DefaultSource`, and the log says why.
"""

import logging

try:
    from eoslog.spark.data_source import EoslogDataSource as DefaultSource

    __all__ = ["DefaultSource"]
except Exception as error:
    # An error would take all Python data sources from the session, those of others too.
    logging.getLogger(__name__).warning("Spark will not know the format eoslog: %s", error)
    __all__ = []
