"""An embedded log with exactly-once semantics, in Kafka's format.

import eoslog

with eoslog.open("data/", create=True) as store:
    store.create_topic("orders", partitions=4)
    with store.producer(name="import") as producer:
        producer.send("orders", value=b"...", key=b"...")
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

# In a source tree the extension modules are elsewhere, and an editable install finds them there.
if not os.path.isdir(f"{__path__[0]}/bindings") and find_spec("eoslog.bindings") is None:  # noqa: PTH112
    raise ImportError(
        f"{__path__[0]} is eoslog's source code, not the installed package: run Python in another "
        "directory after `pip install .`, or install it for work on the sources with "
        "`pip install -e .`"
    )

from eoslog import errors
from eoslog.common.topic_partition import TopicPartition

if TYPE_CHECKING:
    from eoslog.bindings.partition_log import AbortedTransaction as AbortedTransaction
    from eoslog.bindings.partition_log import AppendResult as AppendResult
    from eoslog.bindings.partition_log import OpenTransaction as OpenTransaction
    from eoslog.bindings.partition_log import ProducerState as ProducerState
    from eoslog.bindings.record_batch import Record as Record
    from eoslog.common.prepared_transaction import PreparedTransaction as PreparedTransaction
    from eoslog.consumer.consumer import Consumer as Consumer
    from eoslog.consumer.consumer import OffsetAndTimestamp as OffsetAndTimestamp
    from eoslog.groups.group_coordinator import GroupDescription as GroupDescription
    from eoslog.groups.group_coordinator import MemberDescription as MemberDescription
    from eoslog.groups.group_metadata import ConsumerGroupMetadata as ConsumerGroupMetadata
    from eoslog.groups.group_metadata import OffsetAndMetadata as OffsetAndMetadata
    from eoslog.producer.producer import Producer as Producer
    from eoslog.producer.staged_producer import StagedProducer as StagedProducer
    from eoslog.producer.transactional_producer import (
        TransactionalProducer as TransactionalProducer,
    )
    from eoslog.staging.staged_application import ApplicationState as ApplicationState
    from eoslog.staging.staged_commit import StagedCommit as StagedCommit
    from eoslog.staging.staged_message import StagedFile as StagedFile
    from eoslog.staging.staged_message import StagedMessage as StagedMessage
    from eoslog.staging.staged_writer import StagedWriter as StagedWriter
    from eoslog.storage.partition import Partition as Partition
    from eoslog.storage.topic_registry import TopicDescription as TopicDescription
    from eoslog.store.kafka_export import KafkaExport as KafkaExport
    from eoslog.store.kafka_export import export_kafka as export_kafka
    from eoslog.store.kafka_import import KafkaImport as KafkaImport
    from eoslog.store.kafka_import import import_kafka as import_kafka
    from eoslog.store.opening import open as open
    from eoslog.store.process_loop import read_process_write as read_process_write
    from eoslog.store.store import Store as Store
    from eoslog.transactions.transaction_admin import HangingTransaction as HangingTransaction
    from eoslog.transactions.transaction_admin import (
        TransactionDescription as TransactionDescription,
    )
    from eoslog.transactions.transaction_admin import TransactionListing as TransactionListing

    __version__: str

# Loaded when first asked for: a process that only stages files needs little of this.
_MODULES = {
    "AbortedTransaction": "eoslog.bindings.partition_log",
    "AppendResult": "eoslog.bindings.partition_log",
    "ApplicationState": "eoslog.staging.staged_application",
    "Consumer": "eoslog.consumer.consumer",
    "ConsumerGroupMetadata": "eoslog.groups.group_metadata",
    "GroupDescription": "eoslog.groups.group_coordinator",
    "HangingTransaction": "eoslog.transactions.transaction_admin",
    "KafkaExport": "eoslog.store.kafka_export",
    "KafkaImport": "eoslog.store.kafka_import",
    "MemberDescription": "eoslog.groups.group_coordinator",
    "OffsetAndMetadata": "eoslog.groups.group_metadata",
    "OffsetAndTimestamp": "eoslog.consumer.consumer",
    "OpenTransaction": "eoslog.bindings.partition_log",
    "Partition": "eoslog.storage.partition",
    "PreparedTransaction": "eoslog.common.prepared_transaction",
    "Producer": "eoslog.producer.producer",
    "ProducerState": "eoslog.bindings.partition_log",
    "Record": "eoslog.bindings.record_batch",
    "StagedCommit": "eoslog.staging.staged_commit",
    "StagedFile": "eoslog.staging.staged_message",
    "StagedMessage": "eoslog.staging.staged_message",
    "StagedProducer": "eoslog.producer.staged_producer",
    "StagedWriter": "eoslog.staging.staged_writer",
    "Store": "eoslog.store.store",
    "TopicDescription": "eoslog.storage.topic_registry",
    "TransactionDescription": "eoslog.transactions.transaction_admin",
    "TransactionListing": "eoslog.transactions.transaction_admin",
    "TransactionalProducer": "eoslog.producer.transactional_producer",
    "export_kafka": "eoslog.store.kafka_export",
    "import_kafka": "eoslog.store.kafka_import",
    "open": "eoslog.store.opening",
    "read_process_write": "eoslog.store.process_loop",
}

__all__ = [
    "AbortedTransaction",
    "AppendResult",
    "ApplicationState",
    "Consumer",
    "ConsumerGroupMetadata",
    "GroupDescription",
    "HangingTransaction",
    "KafkaExport",
    "KafkaImport",
    "MemberDescription",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OpenTransaction",
    "Partition",
    "Producer",
    "ProducerState",
    "Record",
    "StagedCommit",
    "StagedFile",
    "StagedMessage",
    "StagedProducer",
    "StagedWriter",
    "Store",
    "TopicDescription",
    "TopicPartition",
    "TransactionDescription",
    "TransactionListing",
    "TransactionalProducer",
    "__version__",
    "errors",
    "export_kafka",
    "import_kafka",
    "open",
    "read_process_write",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("eoslog")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        from eoslog.common.other_clients import attribute_text

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{attribute_text(name)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
