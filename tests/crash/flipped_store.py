"""A small store of every kind of file, and what becomes of it when one bit of a file flips.

A flip is, in this order:
- *wrong*: something was read that was never written, or less than was written without any word of
  it, or the process died, or an error was of no documented kind: the fault that is looked for;
- *refused*: the store, or the partition, or the staged job, is not opened or not taken, and the
  error names the file or the directory it is in;
- *reported*: `verify` names the file, and a position at or before the flipped byte's batch;
- *cut off*: the stop was unclean, and the log ends before the flipped batch, as before a torn
  write, which it cannot be told from; what was cut off is kept aside;
- *corrected*: all was read right, and the file was written anew, or the bit put right;
- *harmless*: all was read right with the bit still flipped: no reader, and no Kafka, looks there.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness.fork import ChildError, Fork
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.errors import CorruptRecordError, EoslogError, TransactionalIdNotFoundError
from eoslog.staging.writer import StagedWriter
from eoslog.store.store import engine_of

TOPIC = "orders"
PARTITIONS = 2
PRODUCER = "writer"
GROUP = "readers"
APP = "app"
TRANSACTIONAL = "transfers"
TOPIC_CONFIG = {"segment.bytes": 1024, "index.interval.bytes": 100, "segment.index.bytes": 240}
# Nothing happens but what is done here.
NO_SPARES = QUIET | {"eoslog.spare.segments": 0}
TIME_MS = 1_790_000_000_000
# So long may one look take; then it counts as a hang.
LOOK_S_MAX = 60
MARGIN_BYTES = 8
UNWRITTEN_STEP_BYTES = 509
OTHER_DECISION = "its coordinator decided to"
_WRITTEN = re.compile(rb"[^\0]+")

WRONG, REFUSED, REPORTED, CUT_OFF, CORRECTED, HARMLESS = (
    "wrong", "refused", "reported", "cut off", "corrected", "harmless",
)  # fmt: skip
OUTCOMES = (CORRECTED, REPORTED, REFUSED, CUT_OFF, HARMLESS, WRONG)


class Flip(NamedTuple):
    """One bit of one file."""

    name: str
    position_bytes: int
    bit: int


class Content(NamedTuple):
    """What was written: records of each partition by offset, and what else the store knows."""

    records: dict[int, dict[int, bytes]]
    committed: dict[int, dict[int, bytes]]
    group_offset: int
    next_sequences: dict[int, int]
    transaction: tuple[str, str]
    app_version: int
    staged: object
    staged_values: list[bytes]


def make_store(path: Path, aside: Path) -> Content:
    """A store that was closed cleanly, and in `aside` what a kill would have left of it."""
    with eoslog.open(path, create=True, config=NO_SPARES) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, config=TOPIC_CONFIG)
        producer = store.producer(name=PRODUCER)
        transfers = store.producer(transactional_id=TRANSACTIONAL)
        transfers.init_transactions()
        for number in range(7):
            for partition in range(PARTITIONS):
                values = [b"plain %d.%d.%d" % (partition, number, index) for index in range(3)]
                producer.append(TOPIC, partition=partition, values=values, timestamps=[TIME_MS] * 3)
            if number % 2:
                transfers.begin_transaction()
                transfers.append(TOPIC, partition=0, values=[b"in a transaction %d" % number])
                if number == 3:
                    transfers.abort_transaction()
                else:
                    transfers.commit_transaction()
        with closing(store.consumer(group=GROUP)) as consumer:
            consumer.commit({TopicPartition(TOPIC, 0): 5})
        committed = stage(store, path, "run-1", [b"adopted"])
        store.commit_staged(APP, 0, [committed], "run-1")
        staged_values = [b"staged %d" % number for number in range(4)]
        staged = stage(store, path, "run-2", staged_values)
        producer.flush()
        found = read_all(store)
        sequences = {number: producer.next_sequence(TOPIC, number) for number in range(PARTITIONS)}
        described = store.describe_transaction(TRANSACTIONAL)
        transaction = (described.transactional_id, str(described.transaction_state))
        shutil.copytree(path, aside)
    return Content(*found, 5, sequences, transaction, 0, staged, staged_values)


def stage(store: eoslog.Store, path: Path, run: str, values: list[bytes]) -> object:
    writer = StagedWriter(path, APP, run, "0", partitions={TOPIC: PARTITIONS}, durability="commit")
    writer.append(TOPIC, 1, values)
    return writer.close()


def read_all(store: eoslog.Store) -> tuple[dict[int, dict[int, bytes]], ...]:
    """The values of each partition by offset: all of them, and those that are committed."""
    found = []
    for isolation in ("read_uncommitted", "read_committed"):
        by_partition = {}
        for partition in range(PARTITIONS):
            log = engine_of(store).partition(TOPIC, partition)
            values: dict[int, bytes] = {}
            offset = log.log_start_offset
            while offset < log.log_end_offset:
                records, following = log.fetch_records(offset, 1000, 1 << 20, isolation)
                values.update((record.offset, record.value) for record in records)
                if following == offset:
                    break
                offset = following
            by_partition[partition] = values
        found.append(by_partition)
    return tuple(found)


class WrongError(Exception):
    """What was found is not what was written."""


class Look:
    """One look at a store with a flipped bit: read everything, verify, write on, read again."""

    def __init__(self, path: Path, flip: Flip, content: Content, clean: bool) -> None:
        self.path = path
        self.flip = flip
        self.content = content
        self.clean = clean
        self.file = path / flip.name
        self.errors: list[EoslogError] = []
        self.problems: list[dict[str, object]] = []
        self.missing = 0

    def outcome(self) -> str:
        before = self.file.read_bytes()
        try:
            store = eoslog.open(self.path, config=NO_SPARES)
        except EoslogError as error:
            self.check_named(error)
            return REFUSED
        try:
            self.read(store)
            self.problems = store.verify()
            self.use(store)
        finally:
            self.tried(store.close)
        if not self.errors and not self.problems:
            self.read_again()
        return self.judged(before)

    def is_named_by(self, problem: Mapping[str, object]) -> bool:
        """By the directory, where recovery cut off what had been synced."""
        lost = "had been synced" in str(problem["reason"])
        return str(problem["path"]) == str(self.file.parent if lost else self.file)

    def judged(self, before: bytes) -> str:
        if self.lost_decisions():
            return CUT_OFF
        if any(self.is_named_by(problem) for problem in self.problems):
            return REPORTED
        for error in self.errors:
            self.check_named(error)
        if self.errors:
            return REFUSED
        if self.problems:
            raise WrongError(f"verify names other files: {self.problems}")
        if self.missing:
            if not self.is_cut():
                raise WrongError(f"{self.missing} records are missing, and nobody says so")
            return CUT_OFF
        return HARMLESS if self.is_still_flipped(before) else CORRECTED

    def lost_decisions(self) -> bool:
        """Whether all that was found follows from records that were cut off the coordinator's log:
        a transaction is decided anew beside its markers, an id is not known.
        """
        if not self.is_cut() or not self.flip.name.startswith("__transaction_state-"):
            return False
        found = [*self.problems, *self.errors]
        return bool(found) and all(
            isinstance(one, TransactionalIdNotFoundError)
            if isinstance(one, EoslogError)
            else OTHER_DECISION in str(one["reason"])
            for one in found
        )

    def is_cut(self) -> bool:
        """Whether the log was cut, as before a torn write, and what was cut off is kept aside."""
        if self.clean or not self.flip.name.endswith(".log"):
            return False
        aside = self.path / "state" / "cut" / Path(self.flip.name).parent
        return any(path.stat().st_size > 0 for path in aside.glob("*"))

    def is_still_flipped(self, before: bytes) -> bool:
        """Whether the flipped byte stands where it stood."""
        at = self.flip.position_bytes
        try:
            return self.file.read_bytes()[at : at + 1] == before[at : at + 1]
        except FileNotFoundError:
            return False

    def check_named(self, error: EoslogError) -> None:
        """The error says which file it is, or at least the directory."""
        text = str(error) + str(getattr(error, "path", ""))
        directory = Path(self.flip.name).parent.name
        if self.file.name not in text and (directory in ("", "state") or directory not in text):
            raise WrongError(f"an error does not name {self.flip.name}: {error!r}") from error

    def read(self, store: eoslog.Store) -> None:
        """Everything that is handed out is what was written there."""
        for partition in range(PARTITIONS):
            for isolation, written in (
                ("read_uncommitted", self.content.records[partition]),
                ("read_committed", self.content.committed[partition]),
            ):
                try:
                    self.read_partition(store, partition, isolation, written)
                except EoslogError as error:
                    self.errors.append(error)
        self.read_the_rest(store)

    def read_partition(
        self, store: eoslog.Store, partition: int, isolation: str, written: dict[int, bytes]
    ) -> None:
        log = engine_of(store).partition(TOPIC, partition)
        offset, found, failed = log.log_start_offset, 0, False
        while offset < log.log_end_offset:
            try:
                records, following = log.fetch_records(offset, 1000, 1 << 20, isolation)
            except CorruptRecordError as error:
                self.errors.append(error)
                failed = True
                offset += 1
                if offset > max(written) + MARGIN_BYTES:
                    break  # The log seems to end far behind.
                continue
            for record in records:
                if written.get(record.offset) != record.value:
                    raise WrongError(f"{isolation}: {record!r}, not {written.get(record.offset)!r}")
            found += len(records)
            if following == offset:
                break
            offset = following
        if found > len(written):
            raise WrongError(f"{isolation}: {found} records of {len(written)}")
        if not failed:
            self.missing += len(written) - found

    def read_the_rest(self, store: eoslog.Store) -> None:
        content = self.content
        with closing(store.consumer(group=GROUP)) as consumer:
            found = self.tried(lambda: consumer.committed(TopicPartition(TOPIC, 0)))
            self.compare("the group's offset", found, content.group_offset)
        described = self.tried(lambda: store.describe_transaction(TRANSACTIONAL))
        if described is not None:
            now = (described.transactional_id, str(described.transaction_state))
            self.compare("the transaction", now, content.transaction)
        application = self.tried(lambda: store.application(APP))
        if application is not None:
            self.compare("the application's version", application.version, content.app_version)

    def tried(self, call):  # type: ignore[no-untyped-def]
        try:
            return call()
        except EoslogError as error:
            self.errors.append(error)
            return None

    def compare(self, what: str, found: object, written: object) -> None:
        """None: an error said why there is nothing; or a record was cut off, which counts."""
        if found == written:
            return
        if found is None:
            self.missing += not self.errors
            return
        if not self.clean and self.flip.name.endswith(".log"):
            self.missing += 1  # An older record holds, if the newer ones were cut off.
            return
        raise WrongError(f"{what} is {found!r}, not {written!r}")

    def use(self, store: eoslog.Store) -> None:
        """Write on: nothing is taken twice, and nothing is put where something stands."""
        ends = {}
        producer = self.tried(lambda: store.producer(name=PRODUCER))
        for partition in range(PARTITIONS):
            end = self.tried(lambda at=partition: store.partition(TOPIC, at).log_end_offset)
            if producer is None or end is None:
                continue
            following = self.tried(lambda at=partition: producer.next_sequence(TOPIC, at))
            if following is None:
                continue
            written = self.content.next_sequences[partition]
            if following < written and not self.clean and self.flip.name.endswith(".log"):
                self.missing += 1
            elif following > written or (following < written and not self.missing):
                raise WrongError(f"the producer goes on at {following}, not {written}")
            appended = self.tried(
                lambda at=partition: producer.append(TOPIC, partition=at, values=[b"more"])
            )
            if appended is not None:
                ends[partition] = end
        if producer is not None:
            self.tried(producer.close)
        message = self.content.staged
        count = {at: store.partition(TOPIC, at).log_end_offset for at in ends}
        if self.tried(lambda: store.commit_staged(APP, 1, [message], "run-2")) is not None:
            log = engine_of(store).partition(TOPIC, 1)
            if 1 in count:
                records, _ = log.fetch_records(count[1], 1000, 1 << 20)
                if [record.value for record in records] != self.content.staged_values:
                    raise WrongError(f"a staged job became {records!r}")
        self.appended = ends

    def read_again(self) -> None:
        with eoslog.open(self.path, config=NO_SPARES) as store:
            found = read_all(store)[0]
            for partition, values in found.items():
                for offset, value in values.items():
                    written = self.content.records[partition].get(offset)
                    if self.missing == 0 and written is not None and value != written:
                        raise WrongError(f"after another opening: {value!r} at {offset}")
                end = self.appended.get(partition)
                if end is not None and values.get(end) != b"more":
                    raise WrongError(f"what was appended at {end} is {values.get(end)!r} now")


def files_of(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def kind_of(name: str) -> str:
    """What a file is called in the table."""
    path = Path(name)
    topic = path.parts[0].rpartition("-")[0]
    if path.parts[0] == "state":
        return name if path.parts[1] == "lmdb" else f"state/{path.parts[1]}"
    if path.parts[0] == "staging":
        return "staged file"
    if len(path.parts) == 1:
        return path.name
    what = path.suffix if path.stem.isdigit() else path.name
    return f"{topic} {what}" if topic in INTERNAL_TOPICS else f"topic {what}"


def positions_of(data: bytes) -> list[int]:
    """The bytes to be flipped: all but those in the middle of long runs of zeros, where nothing has
    been written; of these a few.
    """
    near: set[int] = set()
    for run in _WRITTEN.finditer(data):
        near.update(range(max(0, run.start() - MARGIN_BYTES), run.end() + MARGIN_BYTES))
    near.update(range(0, len(data), UNWRITTEN_STEP_BYTES))
    return sorted(at for at in near if at < len(data))


def flips_of(name: str, data: bytes) -> list[Flip]:
    """All flips of a file."""
    return [Flip(name, at, bit) for at in positions_of(data) for bit in range(8)]


def outcomes(
    template: Path, content: Content, flips: Iterable[Flip], *, clean: bool, folder: Path
) -> Iterator[tuple[Flip, str, str]]:
    """What each flip came to, and for a wrong one how; children do it, which may die of it."""
    waiting = list(flips)
    while waiting:
        with Fork(partial(_do_all, template, content, waiting, clean, folder)) as child:
            try:
                for flip in waiting:
                    yield flip, *child.hear()
            except ChildError as error:
                yield waiting[len(child.said)], WRONG, str(error)
            waiting = waiting[len(child.said) + 1 :]


def _do_all(
    template: Path, content: Content, flips: list[Flip], clean: bool, folder: Path, fork: Fork
) -> None:
    logging.disable(logging.CRITICAL)
    store = folder / f"store-{os.getpid()}"
    for flip in flips:
        signal.alarm(LOOK_S_MAX)
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(template, store, copy_function=shutil.copyfile)
        fork.say(_done(store, flip, content, clean))
    shutil.rmtree(store, ignore_errors=True)


def _done(store: Path, flip: Flip, content: Content, clean: bool) -> tuple[str, str]:
    with open(store / flip.name, "r+b") as file:
        file.seek(flip.position_bytes)
        (byte,) = file.read(1)
        file.seek(flip.position_bytes)
        file.write(bytes([byte ^ 1 << flip.bit]))
    try:
        return Look(store, flip, content, clean).outcome(), ""
    except BaseException as error:
        return WRONG, repr(error)


def table(counts: dict[str, Counter[str]], bytes_of: dict[str, int]) -> str:
    """One line for each kind of file."""
    lines = [f"{'kind':42}{'bytes':>8}{'flips':>9}" + "".join(f"{one:>11}" for one in OUTCOMES)]
    for kind, found in sorted(counts.items()):
        numbers = "".join(f"{found[one]:11,}" for one in OUTCOMES)
        lines.append(f"{kind:42}{bytes_of[kind]:8,}{sum(found.values()):9,}{numbers}")
    return "\n".join(lines)
