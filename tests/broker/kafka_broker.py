"""A Kafka broker on loopback, its tools, and stores that are moved into it and out of it.

How to use it in a test (`make_broker` and `broker` are fixtures; `make broker` runs the folder):

    broker = make_broker()                       # formatted and started: KRaft, free ports
    broker = make_broker(transaction_version=0)  # or with older transactions
    broker.create_topics({"t": 2}, config={"cleanup.policy": "compact"})
    broker.bootstrap_servers                     # for kafka-python's clients, or any others
    broker = make_broker(logs=path)              # on a log directory that is there, not formatted
    broker.load(store_path)                      # a closed store's partitions replace the broker's
    broker.stop(); broker.kill(); broker.start() # `logs` is its log directory
    eoslog.import_kafka(broker.logs, store_path)  # the reverse: a stopped broker's into a store
    broker.consumer_groups("--describe", "--all-groups")  # Kafka's tools, each answers its output
    broker.transactions("list"); dump_log(path, "--deep-iteration")

A test that changes no more than topics, ids and groups of its own takes the fixture `broker`, one
broker for all of them. Nothing outlives the test run: a broker is killed with the process that
started it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka_jars import java_command

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
TOOL_TIMEOUT_S = 120
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
# What the two internal topics are called; a client makes them by its first use of each.
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
# What is used once so that the internal topics are there.
FIRST_ID = "first-id"
FIRST_GROUP = "first-group"

_CONFIG = """\
process.roles=broker,controller
node.id={node_id}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters={node_id}@127.0.0.1:{controller_port}
log.dirs={logs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_STARTED = "Kafka Server started"
_LOADED = "Finished loading"  # A partition of an internal topic, into its coordinator.
_SIGKILL_WITH_PARENT = (1, signal.SIGKILL)  # prctl's PR_SET_PDEATHSIG


def wait_until(what: str, found: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Return the first true answer of `found`; fails, and says what was waited for, without one."""
    deadline = time.monotonic() + timeout_s
    while not (answer := found()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s} seconds; the last was {answer!r}")
        time.sleep(0.05)
    return answer


def run_tool(main_class: str, *arguments: str, check: bool = True) -> str:
    """Run one of Kafka's tools and return all that it printed, errors too."""
    done = subprocess.run(
        [*java_command(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", main_class, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{main_class} {arguments}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def dump_log(path: Path, *options: str) -> str:
    """What Kafka's tool prints of a `.log`, index or `.snapshot` file."""
    return run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", str(path), *options)


def partition_folders(logs: Path) -> list[Path]:
    """The partitions' folders of a broker's log directory or of a store."""
    return sorted(
        path.parent
        for path in logs.glob("*-*/partition.metadata")
        if not path.parent.name.startswith("__cluster_metadata")
        and not path.parent.name.endswith("-delete")
    )


def topics_of(logs: Path) -> dict[str, int]:
    """Topics and their numbers of partitions, by the names of the folders; no internal topics."""
    found: dict[str, int] = {}
    for folder in partition_folders(logs):
        topic, _, number = folder.name.rpartition("-")
        if topic not in INTERNAL_TOPICS:
            found[topic] = max(found.get(topic, 0), int(number) + 1)
    return found


class Broker:
    """One broker, controller included, with a directory of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        transaction_version: int | None = None,
        two_log_dirs: bool = False,
        config: Mapping[str, Any] | None = None,
        logs: Path | None = None,
        node_id: int = 1,
    ) -> None:
        self.logs = logs or directory / "logs"
        # A broker may have another log directory, and puts partitions into both.
        self.all_logs = [self.logs, *([directory / "more-logs"] if two_log_dirs else [])]
        self.port, controller_port = _free_ports(2)
        self._output = directory / "output.txt"
        self._config = directory / "server.properties"
        directory.mkdir(parents=True)
        lines = _CONFIG.format(
            port=self.port,
            controller_port=controller_port,
            logs=",".join(map(str, self.all_logs)),
            node_id=node_id,
        )
        lines += "".join(f"{name}={value}\n" for name, value in (config or {}).items())
        self._config.write_text(lines)
        self._process: subprocess.Popen[bytes] | None = None
        if logs is not None:
            return
        feature = (
            []
            if transaction_version is None
            else ["--feature", f"transaction.version={transaction_version}"]
        )
        run_tool(
            "kafka.tools.StorageTool",
            *("format", "--cluster-id", CLUSTER_ID, "--config", str(self._config), *feature),
        )

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        """What the broker logged since it was started."""
        return self._output.read_text(errors="replace")

    # Starting and stopping.

    def start(self) -> None:
        """Start the broker; on return clients can connect, and its coordinators are loaded."""
        assert self._process is None
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*java_command(), "kafka.Kafka", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if _in_main_thread() else None,
            )
        atexit.register(self.kill)
        wait_until("the broker has started", self._has_started, START_TIMEOUT_S)

    def stop(self) -> None:
        """Stop the broker cleanly: its logs are closed on return."""
        self._end(signal.SIGTERM)
        assert (self.logs / ".kafka_cleanshutdown").exists(), self.output[-4000:]

    def kill(self) -> None:
        """Kill the broker, if it runs."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    def _has_started(self) -> bool:
        assert self._process is not None
        output = self.output
        if self._process.poll() is not None:
            raise AssertionError(f"the broker stopped:\n{output[-8000:]}")
        names = [folder.name for logs in self.all_logs for folder in partition_folders(logs)]
        internal = sum(name.rpartition("-")[0] in INTERNAL_TOPICS for name in names)
        return _STARTED in output and output.count(_LOADED) >= internal

    def _end(self, with_signal: signal.Signals) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, with_signal)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            atexit.unregister(self.kill)

    # Clients and tools.

    @contextmanager
    def admin(self) -> Any:
        """A client of kafka-python for administration."""
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def producer(self, transactional_id: str | None = None, **options: Any) -> Any:
        """A producer of kafka-python; with an id its transactions are initialized."""
        client = KafkaProducer(
            bootstrap_servers=self.bootstrap_servers, transactional_id=transactional_id, **options
        )
        try:
            if transactional_id is not None:
                client.init_transactions()
            yield client
        finally:
            client.close(timeout=10)

    @contextmanager
    def consumer(self, group: str | None = None, **options: Any) -> Any:
        """A `read_committed` consumer of kafka-python that begins with the oldest records."""
        options = {
            "isolation_level": "read_committed",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            **options,
        }
        client = KafkaConsumer(bootstrap_servers=self.bootstrap_servers, group_id=group, **options)
        try:
            yield client
        finally:
            client.close()

    def create_topics(
        self, partitions: Mapping[str, int], config: Mapping[str, str] | None = None
    ) -> None:
        """Create topics of so many partitions; on return each partition has its folder."""
        topics = [
            NewTopic(name, count, 1, topic_configs=config) for name, count in partitions.items()
        ]
        with self.admin() as admin:
            admin.create_topics(topics)
        self._wait_for_folders(partitions)

    def create_internal_topics(self) -> None:
        """Have one transaction commit an offset of a group, of a topic `first-topic`."""
        if not any("first-topic" in topics_of(logs) for logs in self.all_logs):
            self.create_topics({"first-topic": 1})
        with self.producer(FIRST_ID) as producer:
            producer.begin_transaction()
            producer.send("first-topic", b"first").get(60)
            offsets = {TopicPartition("first-topic", 0): OffsetAndMetadata(1, "", -1)}
            producer.send_offsets_to_transaction(offsets, FIRST_GROUP)
            producer.commit_transaction()
        self._wait_for_folders(dict.fromkeys(INTERNAL_TOPICS, 50))

    def records(
        self, topic: str, partition: int = 0, isolation_level: str = "read_committed"
    ) -> list[Any]:
        """All records of a partition that a consumer of that isolation level gets."""
        where = TopicPartition(topic, partition)
        with self.consumer(isolation_level=isolation_level) as consumer:
            consumer.assign([where])
            consumer.seek_to_beginning(where)
            end = consumer.end_offsets([where])[where]
            found: list[Any] = []

            def at_end() -> bool:
                found.extend(consumer.poll(timeout_ms=200).get(where, []))
                return bool(consumer.position(where) >= end)

            wait_until(f"all records of {where} below {end}", at_end)
        return found

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """The stable offset that a group has, as the coordinator answers it."""
        with self.consumer(group) as consumer:
            return consumer.committed(TopicPartition(topic, partition))

    def consumer_groups(self, *arguments: str, check: bool = True) -> str:
        """Run `kafka-consumer-groups`."""
        return run_tool(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            *("--bootstrap-server", self.bootstrap_servers, *arguments),
            check=check,
        )

    def transactions(self, *arguments: str, check: bool = True) -> str:
        """Run `kafka-transactions`."""
        return run_tool(
            "org.apache.kafka.tools.TransactionsCommand",
            *("--bootstrap-server", self.bootstrap_servers, *arguments),
            check=check,
        )

    # Stores.

    def load(self, store: Path, config: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Replace the broker's partitions by those of a closed store, which is only read.

        The broker runs before and after. Topics that it does not have are created, with the
        settings in `config`; partitions of internal topics that the store has not stay.
        """
        known = topics_of(self.logs)
        for topic, count in topics_of(store).items():
            if topic not in known:
                self.create_topics({topic: count}, (config or {}).get(topic))
        if any(not (self.logs / f"{topic}-49").exists() for topic in INTERNAL_TOPICS):
            self.create_internal_topics()
        self.stop()
        folders = partition_folders(store)
        for folder in folders:
            _replace(self.logs / folder.name, folder)
        _leave_out_of_checkpoints(self.logs, {folder.name for folder in folders})
        self.start()

    def _wait_for_folders(self, partitions: Mapping[str, int]) -> None:
        wanted = {
            f"{name}-{number}" for name, count in partitions.items() for number in range(count)
        }
        wait_until(
            f"folders of {', '.join(partitions)}",
            lambda: (
                wanted
                <= {folder.name for logs in self.all_logs for folder in partition_folders(logs)}
            ),
        )


def _replace(target: Path, source: Path) -> None:
    """Put a copy of a partition's folder in place of another, which keeps its topic's id."""
    metadata = (target / "partition.metadata").read_bytes()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    (target / "partition.metadata").write_bytes(metadata)


def _leave_out_of_checkpoints(logs: Path, names: set[str]) -> None:
    for path in logs.glob("*-checkpoint"):
        rows = path.read_text().splitlines()[2:]
        kept = [row for row in rows if "-".join(row.split()[:2]) not in names]
        path.write_text("\n".join(["0", str(len(kept)), *kept]) + "\n")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _die_with_parent() -> None:
    # The kernel sends it also if the parent is killed, when nothing else can.
    _PRCTL(*_SIGKILL_WITH_PARENT)


_PRCTL = ctypes.CDLL(None).prctl
