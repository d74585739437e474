"""The data source `eoslog` with gates: format `gated-eoslog`, with one more option, `gates`.

Steps, all in the process that Spark runs them in, and each also with ` of batch N` behind it for
the micro-batch of that number only:

    write N     in a task of partition N, between two of its Arrow batches
    staged N    in that task, when all is staged and Spark has not been told
    write N.A   in attempt A, from 0, at that task
    staged N.A
    commit      in the driver's commit, before it did anything
    decided     in it, just after the decision, when nothing of the job is in the log yet
    committed   in it, after it did its work
    abort       in the driver's abort, before it did anything
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gates import Gates
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from eoslog.spark.data_source import EoslogDataSource
from eoslog.staging.application import PREPARED
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import APPLICATION


class GatedDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "gated-eoslog"

    def writer(self, schema: Any, overwrite: bool) -> "GatedBatchWriter":
        return GatedBatchWriter(self._plain().writer(schema, overwrite), self._gates())

    def streamWriter(self, schema: Any, overwrite: bool) -> "GatedStreamWriter":  # noqa: N802
        return GatedStreamWriter(self._plain().streamWriter(schema, overwrite), self._gates())

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return self._plain().streamReader(schema)

    def _gates(self) -> Gates:
        return Gates(self.options["gates"])

    def _plain(self) -> EoslogDataSource:
        return EoslogDataSource({k: v for k, v in self.options.items() if k != "gates"})


class _Gated:
    """A writer whose steps are gated, and that otherwise does what the given one does."""

    def __init__(self, writer: Any, gates: Gates) -> None:
        self.inner = writer
        self.gates = gates

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        number, attempt = context.partitionId(), context.attemptNumber()
        found = context.getLocalProperty("streaming.sql.batchId")
        batch = () if found is None else (int(found),)

        def gated() -> Iterator[Any]:
            for one in iterator:
                yield one
                self._come_to(f"write {number}", batch)
                self.gates.come_to(f"write {number}.{attempt}")

        message = self.inner.write(gated())
        self._come_to(f"staged {number}", batch)
        self.gates.come_to(f"staged {number}.{attempt}")
        return message

    def commit(self, messages: Any, *batch: int) -> None:
        self._come_to("commit", batch)
        with self._gated_decision(batch):
            self.inner.commit(messages, *batch)
        self._come_to("committed", batch)

    def abort(self, messages: Any, *batch: int) -> None:
        self._come_to("abort", batch)
        self.inner.abort(messages, *batch)

    def _come_to(self, step: str, batch: tuple[int, ...]) -> None:
        self.gates.come_to(step)
        for number in batch:
            self.gates.come_to(f"{step} of batch {number}")

    @contextmanager
    def _gated_decision(self, batch: tuple[int, ...]) -> Iterator[None]:
        append = CompactedLog.append

        def append_and_come_to_gate(log: Any, kind: int, name: str, state: Any, **how: Any) -> int:
            offset = append(log, kind, name, state, **how)
            if kind == APPLICATION and state["state"] == PREPARED:
                self._come_to("decided", batch)
            return offset

        CompactedLog.append = append_and_come_to_gate
        try:
            yield
        finally:
            CompactedLog.append = append


class GatedBatchWriter(_Gated, DataSourceArrowWriter):
    pass


class GatedStreamWriter(_Gated, DataSourceStreamArrowWriter):
    pass
