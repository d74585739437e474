"""A store's metrics for the library prometheus_client, which is loaded when it is first needed."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from eoslog.errors import LogClosedError, MissingDependencyError
from eoslog.store.metric_families import metric_families
from eoslog.store.store import Store

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
else:
    Collector = object


class StoreCollector(Collector):
    """Collector of a store's metrics: `prometheus_client.REGISTRY.register(StoreCollector(store))`.

    The metrics are those of the store over all its processes, as `eoslog metrics --prometheus` has
    them. A closed store has none. Raises MissingDependencyError without prometheus_client.
    """

    def __init__(self, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"store must be a Store, got {type(store).__name__}")
        try:
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                "metrics for Prometheus need prometheus_client: run `pip install 'eoslog[metrics]'`"
            ) from error
        self._store = store

    def __repr__(self) -> str:
        return f"<eoslog.StoreCollector of {str(self._store.path)!r}>"

    def describe(self) -> "Iterable[Metric]":
        """Return nothing: registering takes no look at the store."""
        return ()

    def collect(self) -> "Iterator[Metric]":
        """Yield all metrics. Raises StoreError."""
        from prometheus_client.metrics_core import Metric
        from prometheus_client.samples import Sample

        try:
            families = metric_families(self._store)
        except LogClosedError:
            return
        for family in families:
            metric = Metric(family.name, family.help, family.kind)
            metric.samples = [Sample(*sample) for sample in family.samples]
            yield metric


def prometheus_text(store: Store) -> str:
    """Return all metrics in Prometheus's text format. Raises MissingDependencyError, StoreError."""
    collector = StoreCollector(store)
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()
