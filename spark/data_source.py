"""The Spark data source `eoslog`: which class reads or writes what.

Nothing is imported before it is needed: Spark looks at this class in every session that uses any
Python data source.
"""

from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from eoslog.spark.sink.batch_writer import BatchWriter
    from eoslog.spark.sink.stream_writer import StreamWriter
    from eoslog.spark.source.batch_reader import BatchReader
    from eoslog.spark.source.stream_reader import StreamReader


class EoslogDataSource(DataSource):
    """Topics of an eoslog store, with the columns and options of Spark's Kafka source and sink."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format()` takes.

        In a driver it is asked for when the class is registered: from then on the format is found
        from every thread, in workers of this environment.
        """
        from eoslog.spark.active_session import (
            instantiated_session,
            keep_active,
            use_this_python,
        )

        spark = instantiated_session()
        if spark is not None:
            from eoslog.spark.stream_context import pass_checkpoints_on

            use_this_python(spark)
            keep_active(spark)
            pass_checkpoints_on()
        return "eoslog"

    def schema(self) -> "StructType":
        """The columns that a read gives.

        Spark asks for them at `load()`, unless it is given a schema, and for CREATE TABLE. Raises
        ValueError for a table, and for an option that no read has.
        """
        from eoslog.spark.source.read_options import KNOWN_OPTIONS
        from eoslog.spark.source.read_schema import schema_of
        from eoslog.spark.source_options import NO_TABLES, TABLE_OPTION, check_options, find

        if find(self.options, TABLE_OPTION) is not None:
            raise ValueError(NO_TABLES)
        check_options(self.options, KNOWN_OPTIONS, "read")
        return schema_of(self.options)

    def reader(self, schema: "StructType") -> "BatchReader":
        """Return the reader of `spark.read`."""
        from eoslog.spark.source.batch_reader import BatchReader, PruningBatchReader
        from eoslog.spark.source.read_options import PUSH_DOWN
        from eoslog.spark.source_options import flag

        prunes = flag(self.options, PUSH_DOWN, False)
        return (PruningBatchReader if prunes else BatchReader)(self.options, schema)

    def streamReader(self, schema: "StructType") -> "StreamReader | RefusedStream":  # noqa: N802
        """Return the reader of `spark.readStream`."""
        from eoslog.spark.source.stream_reader import StreamReader

        try:
            return StreamReader(self.options, schema)
        except ValueError as error:
            return RefusedStream(error)

    def writer(self, schema: "StructType", overwrite: bool) -> "BatchWriter":
        """Return the writer of `df.write`."""
        from eoslog.spark.sink.batch_writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "StreamWriter":  # noqa: N802
        """Return the writer of `df.writeStream`."""
        from eoslog.spark.sink.stream_writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)


class RefusedStream(DataSourceStreamReader):
    """A stream that cannot be read, as Spark's first call says.

    Spark stops a reader that it could not make, and reports the failure of that instead.
    """

    def __init__(self, error: ValueError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:  # noqa: N802
        raise self._error

    def latestOffset(self, *_: Any) -> NoReturn:  # noqa: N802
        raise self._error

    def partitions(self, *_: Any) -> NoReturn:
        raise self._error

    def read(self, *_: Any) -> NoReturn:
        raise self._error
