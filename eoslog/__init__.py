"""An embedded log with exactly-once semantics, in Kafka's format.

import eoslog

with eoslog.open("data/", create=True) as store:
    store.create_topic("orders", partitions=4)
    with store.producer(name="import") as producer:
        producer.send("orders", value=b"...", key=b"...")
"""

import os
import sys
from importlib import import_module

if not os.path.isdir(f"{__path__[0]}/bindings"):  # noqa: PTH112
    # In a source tree they are elsewhere, and an editable install finds them there.
    from importlib.util import find_spec

    if find_spec("eoslog.bindings") is None:
        raise ImportError(
            f"{__path__[0]} is eoslog's source code, not the installed package: run Python in "
            "another directory after `pip install .`, or install it for work on the sources with "
            "`pip install -e .`"
        )

TYPE_CHECKING = False  # As in `typing`, which takes as long to load as all of this.
if TYPE_CHECKING:
    from typing import Any

    from eoslog import errors as errors
    from eoslog.bindings.partition_log import AbortedTransaction as AbortedTransaction
    from eoslog.bindings.partition_log import AppendResult as AppendResult
    from eoslog.bindings.partition_log import OpenTransaction as OpenTransaction
    from eoslog.bindings.partition_log import ProducerState as ProducerState
    from eoslog.bindings.record_batch import Record as Record
    from eoslog.common.prepared_transaction import PreparedTransaction as PreparedTransaction
    from eoslog.common.record_metadata import RecordMetadata as RecordMetadata
    from eoslog.common.topic_partition import TopicPartition as TopicPartition
    from eoslog.consumer.consumer import Consumer as Consumer
    from eoslog.consumer.consumer import OffsetAndTimestamp as OffsetAndTimestamp
    from eoslog.exchange.file_import import FileImport as FileImport
    from eoslog.exchange.file_import import import_file as import_file
    from eoslog.exchange.kafka_export import KafkaExport as KafkaExport
    from eoslog.exchange.kafka_export import export_kafka as export_kafka
    from eoslog.exchange.kafka_import import KafkaImport as KafkaImport
    from eoslog.exchange.kafka_import import import_kafka as import_kafka
    from eoslog.exchange.restore import StoreRestore as StoreRestore
    from eoslog.exchange.restore import restore as restore
    from eoslog.exchange.topic_export import TopicExport as TopicExport
    from eoslog.exchange.topic_export import export_topic as export_topic
    from eoslog.groups.coordinator import GroupDescription as GroupDescription
    from eoslog.groups.coordinator import MemberDescription as MemberDescription
    from eoslog.groups.metadata import ConsumerGroupMetadata as ConsumerGroupMetadata
    from eoslog.groups.metadata import OffsetAndMetadata as OffsetAndMetadata
    from eoslog.producer.producer import Producer as Producer
    from eoslog.producer.transactional_producer import (
        TransactionalProducer as TransactionalProducer,
    )
    from eoslog.staging.application import ApplicationState as ApplicationState
    from eoslog.staging.commit import StagedCommit as StagedCommit
    from eoslog.staging.message import StagedFile as StagedFile
    from eoslog.staging.message import StagedMessage as StagedMessage
    from eoslog.staging.writer import StagedWriter as StagedWriter
    from eoslog.storage.topic_registry import TopicDescription as TopicDescription
    from eoslog.store.backup import StoreBackup as StoreBackup
    from eoslog.store.collector import StoreCollector as StoreCollector
    from eoslog.store.log_directories import LogDirectory as LogDirectory
    from eoslog.store.opening import open as open
    from eoslog.store.partition import Partition as Partition
    from eoslog.store.process_loop import read_process_write as read_process_write
    from eoslog.store.record_deletion import DeletableRecords as DeletableRecords
    from eoslog.store.scan import Scan as Scan
    from eoslog.store.stable_offset import LastStableOffset as LastStableOffset
    from eoslog.store.store import Store as Store
    from eoslog.transactions.admin import HangingTransaction as HangingTransaction
    from eoslog.transactions.admin import (
        TransactionDescription as TransactionDescription,
    )
    from eoslog.transactions.admin import TransactionListing as TransactionListing

    __version__: str

# Loaded when first asked for: a process that only stages files needs little of this, and one that
# imports eoslog in case it is used needs none.
_MODULES = {
    "AbortedTransaction": "eoslog.bindings.partition_log",
    "AppendResult": "eoslog.bindings.partition_log",
    "ApplicationState": "eoslog.staging.application",
    "Consumer": "eoslog.consumer.consumer",
    "ConsumerGroupMetadata": "eoslog.groups.metadata",
    "DeletableRecords": "eoslog.store.record_deletion",
    "FileImport": "eoslog.exchange.file_import",
    "GroupDescription": "eoslog.groups.coordinator",
    "HangingTransaction": "eoslog.transactions.admin",
    "KafkaExport": "eoslog.exchange.kafka_export",
    "KafkaImport": "eoslog.exchange.kafka_import",
    "LastStableOffset": "eoslog.store.stable_offset",
    "LogDirectory": "eoslog.store.log_directories",
    "MemberDescription": "eoslog.groups.coordinator",
    "OffsetAndMetadata": "eoslog.groups.metadata",
    "OffsetAndTimestamp": "eoslog.consumer.consumer",
    "OpenTransaction": "eoslog.bindings.partition_log",
    "Partition": "eoslog.store.partition",
    "PreparedTransaction": "eoslog.common.prepared_transaction",
    "Producer": "eoslog.producer.producer",
    "ProducerState": "eoslog.bindings.partition_log",
    "Record": "eoslog.bindings.record_batch",
    "RecordMetadata": "eoslog.common.record_metadata",
    "Scan": "eoslog.store.scan",
    "StagedCommit": "eoslog.staging.commit",
    "StagedFile": "eoslog.staging.message",
    "StagedMessage": "eoslog.staging.message",
    "StagedWriter": "eoslog.staging.writer",
    "Store": "eoslog.store.store",
    "StoreBackup": "eoslog.store.backup",
    "StoreCollector": "eoslog.store.collector",
    "StoreRestore": "eoslog.exchange.restore",
    "TopicDescription": "eoslog.storage.topic_registry",
    "TopicExport": "eoslog.exchange.topic_export",
    "TopicPartition": "eoslog.common.topic_partition",
    "TransactionDescription": "eoslog.transactions.admin",
    "TransactionListing": "eoslog.transactions.admin",
    "TransactionalProducer": "eoslog.producer.transactional_producer",
    "export_kafka": "eoslog.exchange.kafka_export",
    "export_topic": "eoslog.exchange.topic_export",
    "import_file": "eoslog.exchange.file_import",
    "import_kafka": "eoslog.exchange.kafka_import",
    "open": "eoslog.store.opening",
    "read_process_write": "eoslog.store.process_loop",
    "restore": "eoslog.exchange.restore",
}

__all__ = ["__version__", "errors", *_MODULES]

# Where version 0.1.0 had the classes that it pickled: `pickle` finds them here by these names.
_PICKLED_IN = (
    *("consumer_lookups", "group_description", "group_metadata", "prepared_transaction"),
    *("staged_application", "staged_commit", "staged_message"),
    *("topic_partition", "topic_registry", "transaction_admin"),
)
sys.modules.update({f"{__name__}.{name}": sys.modules[__name__] for name in _PICKLED_IN})


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("eoslog")
    elif name == "errors":
        value = import_module("eoslog.errors")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        from eoslog.common.other_clients import refuse_name

        refuse_name(__name__, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
