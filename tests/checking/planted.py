"""One wrong thing in an otherwise clean history, per kind of anomaly.

Each function changes the lines of a world and returns what a check is to find: how many anomalies
of which kinds, and a text that names what was changed. None, if the world has nothing to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from simulated_log import GROUP, IN, OUT, PLAIN, Transaction, World

Line = dict[str, Any]
Planted = tuple[dict[str, int], str] | None


def polls(world: World, where: str, offset: int) -> Iterator[Line]:
    """The polls that passed an offset."""
    for line in world.lines:
        if line["kind"] == "poll":
            before, after = line["_ranges"].get(where, (0, 0))
            if before <= offset < after:
                yield line


def returned(line: Line, where: str, offset: int) -> bool:
    return any(at == offset for at, _ in line["records"].get(where, []))


def remove(line: Line, where: str, offset: int) -> None:
    line["records"][where] = [one for one in line["records"][where] if one[0] != offset]


def insert(world: World, where: str, offset: int, value: str, *, committed_only: bool) -> None:
    """As if the record had always been there for all readers, or those of committed data."""
    for line in polls(world, where, offset):
        if not returned(line, where, offset) and not (
            committed_only and line["isolation"] == "read_uncommitted"
        ):
            records = line["records"].setdefault(where, [])
            records.append([offset, value])
            records.sort()


def records(world: World, state: str | None, topics: tuple[str, ...]) -> list[tuple[str, int]]:
    """Places of records of transactions in this state; None: of none."""
    return [
        (where, offset)
        for where, entries in world.log.entries.items()
        for offset, entry in enumerate(entries)
        if entry.value is not None
        and where.rpartition("-")[0] in topics
        and (entry.transaction.state if entry.transaction else None) == state
    ]


def value_at(world: World, where: str, offset: int) -> str:
    value = world.log.entries[where][offset].value
    assert value is not None
    return value


def send_of(world: World, value: str) -> Line:
    return next(
        line
        for line in world.lines
        if line["kind"] == "send" and value in (line.get("value"), *line.get("values", ()))
    )


def transactions(world: World, state: str) -> list[Transaction]:
    found: dict[str, Transaction] = {}
    for entries in world.log.entries.values():
        for entry in entries:
            if entry.transaction is not None and entry.transaction.state == state:
                found[entry.transaction.name] = entry.transaction
    return list(found.values())


def end_of(world: World, transaction: Transaction, outcome: str) -> Line | None:
    return next(
        (
            line
            for line in world.lines
            if line["kind"] == "commit"
            and line["transaction"] == transaction.name
            and line["outcome"] == outcome
        ),
        None,
    )


def choose(world: World, found: list[Any]) -> Any:
    return world.noise.choice(found) if found else None


def lost_write(world: World) -> Planted:
    found = [
        place
        for place in records(world, None, (PLAIN,))
        if send_of(world, value_at(world, *place))["outcome"] == "ok"
    ]
    return _lose(world, choose(world, found), "lost write")


def lost_transaction(world: World) -> Planted:
    """The only record of a transaction whose commit was acknowledged."""
    found = [
        one.records[0]
        for one in transactions(world, "committed")
        if len(one.records) == 1 and not one.offsets and end_of(world, one, "ok")
    ]
    found = [place for place in found if not place[0].startswith(IN)]
    return _lose(world, choose(world, found), "lost write")


def _lose(world: World, place: tuple[str, int] | None, kind: str) -> Planted:
    if place is None:
        return None
    for line in polls(world, *place):
        if returned(line, *place):
            remove(line, *place)
    return {kind: 1}, value_at(world, *place)


def lost_tail(world: World) -> Planted:
    """What everybody read is not there any more: a partition ends before it."""
    where = choose(world, [one for one, entries in world.log.entries.items() if entries])
    if where is None:
        return None
    isolation = choose(world, ["read_committed", "read_uncommitted"])
    ends = {one: len(entries) for one, entries in world.log.entries.items()}
    ends[where] = world.noise.randrange(ends[where])
    at_the_end(world, {"kind": "ends", "offsets": ends, "isolation": isolation})
    return {"lost write": 1}, f"{where} ended at offset {ends[where]}, "


def lost_at_the_tail(world: World) -> Planted:
    """Acknowledged at offsets that the partition does not go up to afterwards."""
    ends = {one: len(entries) for one, entries in world.log.entries.items()}
    of = {"topic": PLAIN, "partition": 0, "values": ["kept", "gone", "gone as well"]}
    at_the_end(world, {"kind": "send", "offset": ends["plain-0"], **of})
    ends["plain-0"] += 1
    at_the_end(world, {"kind": "ends", "offsets": ends, "isolation": "read_uncommitted"})
    return {"lost write": 2}, "gone as well"


def at_the_end(world: World, fields: dict[str, Any]) -> None:
    """A new client's call, when all others have ended."""
    begin = max(line["end_ns"] or line["begin_ns"] for line in world.lines) + 1
    times = {"begin_ns": begin, "end_ns": begin + 1, "outcome": "ok"}
    world.lines.append({"client": f"late-{begin}", **times, **fields})


def lost_by_counting(world: World) -> Planted:
    """Acknowledged without their offsets, and the partition has no room for all of them."""
    for value in ("kept", "gone", "gone as well"):
        at_the_end(world, {"kind": "send", "topic": "late", "partition": 0, "value": value})
    at_the_end(world, {"kind": "ends", "offsets": {"late-0": 2}, "isolation": "read_uncommitted"})
    return {"lost write": 1}, "3 records had been acknowledged"


def torn_transaction(world: World) -> Planted:
    found = [
        one.records[-1]
        for one in transactions(world, "committed")
        if len(one.records) > 1 and not one.records[-1][0].startswith(IN)
    ]
    return _lose(world, choose(world, found), "torn transaction")


def decided_twice(world: World) -> Planted:
    found = [one for one in transactions(world, "committed") if end_of(world, one, "ok")]
    transaction = choose(world, found)
    commit = end_of(world, transaction, "ok") if transaction else None
    if commit is None:
        return None
    world.lines.append(commit | {"kind": "abort", "client": "other"})
    return {"torn transaction": 1}, transaction.name


def duplicate(world: World) -> Planted:
    """A committed record a second time, where the marker of a transaction stands."""
    entries = world.log.entries["out-0"]
    markers = [offset for offset, entry in enumerate(entries) if entry.value is None]
    # A marker behind that of the record's own transaction: whoever passed it could read the record.
    found = [
        (offset, marker)
        for where, offset in records(world, "committed", (OUT,))
        if where == "out-0"
        for marker in markers
        if any(
            entries[own].transaction is entries[offset].transaction
            for own in markers
            if own < marker
        )
    ]
    chosen = choose(world, found)
    if chosen is None:
        return None
    value = value_at(world, "out-0", chosen[0])
    insert(world, "out-0", chosen[1], value, committed_only=False)
    return {"duplicate": 1}, value


def aborted_read(world: World) -> Planted:
    place = choose(world, records(world, "aborted", (OUT,)))
    if place is None:
        return None
    value = value_at(world, *place)
    transaction = world.log.entries[place[0]][place[1]].transaction
    assert transaction is not None
    ended = [
        line
        for line in world.lines
        if line["kind"] in ("abort", "commit") and line["transaction"] == transaction.name
    ]
    if not any(line["kind"] == "abort" for line in ended):
        # Its client was killed: nobody asked for its end, or for its commit in vain.
        if not ended:
            insert(world, *place, value, committed_only=True)
            return {"precommitted read": 1}, value
        return None
    insert(world, *place, value, committed_only=True)
    return {"aborted read": 1}, value


def read_of_a_failed_send(world: World) -> Planted:
    place = choose(world, records(world, None, (PLAIN,)))
    if place is None:
        return None
    value = value_at(world, *place)
    line = send_of(world, value)
    line["outcome"] = "fail"
    line["end_ns"] = line["end_ns"] or line["begin_ns"]
    line.pop("offset", None)
    return {"aborted read": 1}, value


def precommitted_read(world: World) -> Planted:
    """Somebody had a record before its commit was asked for."""
    transaction = choose(world, transactions(world, "committed"))
    if transaction is None:
        return None
    commit = end_of(world, transaction, "ok") or end_of(world, transaction, "unknown")
    assert commit is not None
    where, offset = transaction.records[0]
    keep_the_last_ends(world)
    early(world, where, offset, {"begin_ns": 1, "end_ns": commit["begin_ns"] - 1})
    return {"precommitted read": 1}, value_at(world, where, offset)


def keep_the_last_ends(world: World) -> None:
    """Those of before would say that what comes earlier now was not there yet."""
    last = [line for line in world.lines if line["kind"] == "ends"][-1]
    world.lines = [line for line in world.lines if line["kind"] != "ends" or line is last]


def early(world: World, where: str, offset: int, fields: dict[str, Any]) -> None:
    """A new reader that has one record alone."""
    world.lines.append(
        {
            "client": f"only-{offset}-{len(world.lines)}",
            "kind": "poll",
            "begin_ns": world.now + 100,
            "end_ns": world.now + 101,
            "outcome": "ok",
            "records": {where: [[offset, value_at(world, where, offset)]]},
            **fields,
        }
    )


def circular_information_flow(world: World) -> Planted:
    found = [
        (one, place)
        for one in transactions(world, "committed")
        for place in one.records
        if place[0].startswith(OUT)
    ]
    first = choose(world, found)
    second = choose(world, [one for one in found if first and one[0] is not first[0]])
    if second is None:
        return None
    for (_, place), (reader, _) in ((first, second), (second, first)):
        early(world, *place, {"transaction": reader.name})
    return {"circular information flow": 1}, first[0].name


def transaction_that_reads_itself(world: World) -> Planted:
    """While it is committed: only that it was made from its own record is wrong."""
    found = [one for one in transactions(world, "committed") if end_of(world, one, "ok")]
    transaction = choose(world, found)
    commit = end_of(world, transaction, "ok") if transaction else None
    if commit is None:
        return None
    times = {name: commit[name] for name in ("begin_ns", "end_ns")}
    keep_the_last_ends(world)
    early(world, *transaction.records[0], times | {"transaction": transaction.name})
    return {"circular information flow": 1}, transaction.name


def inconsistent_offsets(world: World) -> Planted:
    """One reader has another record at an offset than all others."""
    found = [
        (line, one)
        for line in world.lines
        if line["kind"] == "poll" and line["client"] == "reader-0"
        for one in line["records"].get("plain-0", [])
    ]
    chosen = choose(world, found)
    if chosen is None:
        return None
    chosen[1][1] = "ghost"
    return {"inconsistent offsets": 1}, "ghost"


def strayed_record(world: World) -> Planted:
    found = [
        line
        for line in (
            send_of(world, value_at(world, *one)) for one in records(world, None, (PLAIN,))
        )
        if line["outcome"] == "ok" and line["partition"] is not None and "offset" not in line
    ]
    line = choose(world, found)
    if line is None:
        return None
    line["partition"] = 1 - line["partition"]
    return {"inconsistent offsets": 1}, line["value"]


def non_monotonic_send(world: World) -> Planted:
    """Two records of a client, sent one after the other, have changed places."""
    found = []
    for where in ("plain-0", "plain-1"):
        for name in ("plain-0", "plain-1"):
            mine = [
                offset
                for offset, entry in enumerate(world.log.entries[where])
                if (line := send_of(world, str(entry.value)))["client"] == name
                and line["outcome"] == "ok"
                and line["partition"] is not None
            ]
            found += [(where, *pair) for pair in pairwise(mine)]
    chosen = choose(world, found)
    if chosen is None:
        return None
    where, first, second = chosen
    keep_the_last_ends(world)
    values = value_at(world, where, first), value_at(world, where, second)
    swapped = dict(zip(values, values[::-1], strict=True))
    for line in world.lines:
        for one in line.get("records", {}).get(where, []):
            one[1] = swapped.get(one[1], one[1])
        if line["kind"] == "send" and line.get("value") in values and "offset" in line:
            line["offset"] = second if line["value"] == values[0] else first
    return {"non-monotonic send": 1}, values[1]


def non_monotonic_poll(world: World) -> Planted:
    found = [
        (where, given)
        for line in world.lines
        if line["kind"] == "poll"
        for where, given in line["records"].items()
        if len(given) > 1
    ]
    chosen = choose(world, found)
    if chosen is None:
        return None
    chosen[1].reverse()
    return {"non-monotonic poll": 1}, chosen[0]


def position_before_what_was_polled(world: World) -> Planted:
    """A poll says that the consumer stands at or before a record that it has just returned."""
    found = [
        (line, where, given)
        for line in world.lines
        if line["kind"] == "poll" and line.get("next")
        for where, given in line["records"].items()
        if len(given) > 1 and where in line["next"]
    ]
    chosen = choose(world, found)
    if chosen is None:
        return None
    line, where, given = chosen
    line["next"][where] = world.noise.choice([at for at, _ in given[1:]])
    return {"non-monotonic poll": 1}, where


def repeated_poll(world: World) -> Planted:
    """A consumer is given the same again, without having gone back."""
    found = [
        line
        for line in world.lines
        if line["kind"] == "poll" and any(line["records"].values()) and "transaction" not in line
    ]
    line = choose(world, found)
    if line is None:
        return None
    again = {name: one for name, one in line.items() if name != "_ranges"}
    # Right behind it, before the client's next call.
    world.lines.insert(world.lines.index(line) + 1, again)
    count = sum(1 for given in line["records"].values() if given)
    return {"non-monotonic poll": count}, line["client"]


def poll_skip(world: World) -> Planted:
    found = [
        (line, where, given[0][0])
        for line in world.lines
        if line["kind"] == "poll" and line["client"] == "reader-2"
        for where, given in line["records"].items()
        if given
    ]
    chosen = choose(world, found)
    if chosen is None:
        return None
    line, where, offset = chosen
    value = value_at(world, where, offset)
    remove(line, where, offset)
    return {"poll skip": 1}, value


def zombie(world: World) -> tuple[Line, Line] | None:
    """An init, and one of the same id that began after it had returned."""
    inits = [line for line in world.lines if line["kind"] == "init"]
    pairs = [
        (one, other)
        for one in inits
        for other in inits
        if one["transactional_id"] == other["transactional_id"]
        and other["begin_ns"] > one["end_ns"]
    ]
    return choose(world, pairs)


def zombie_write(world: World) -> Planted:
    pair = zombie(world)
    assert pair is not None
    later = {"begin_ns": world.now + 50, "end_ns": world.now + 60}
    of = {"transactional_id": pair[0]["transactional_id"], "transaction": "undead"}
    line = {"client": pair[0]["client"], "kind": "send", "outcome": "ok", **later, **of}
    at = len(world.log.entries["out-0"]) + 5
    world.lines.append(line | {"topic": OUT, "partition": 0, "value": "undead", "offset": at})
    return {"zombie write": 1}, pair[0]["client"]


def zombie_commit(world: World) -> Planted:
    """By producer id and epoch alone."""
    pair = zombie(world)
    assert pair is not None
    of = {name: pair[0][name] for name in ("producer_id", "producer_epoch")}
    later = {"begin_ns": world.now + 50, "end_ns": world.now + 60, "outcome": "ok"}
    world.lines.append(
        {"client": "nobody", "kind": "commit", "transaction": "undead", **later, **of}
    )
    return {"zombie write": 1}, "nobody"


def zombie_that_only_its_init_names(world: World) -> Planted:
    pair = zombie(world)
    assert pair is not None
    line = {"client": pair[0]["client"], "kind": "commit", "outcome": "ok", "transaction": "undead"}
    world.lines.append(line | {"begin_ns": world.now + 50, "end_ns": world.now + 60})
    return {"zombie write": 1}, pair[0]["client"]


def zombie_in_the_log(world: World) -> Planted:
    """A record of an older epoch behind one of a newer; no clock says so."""
    at = len(world.log.entries["out-0"]) + 5
    for offset, epoch in ((at, 8), (at + 1, 7)):
        world.lines.append(
            {
                "client": f"epoch-{epoch}",
                "kind": "send",
                "begin_ns": 1,
                "end_ns": 2,
                "outcome": "ok",
                "topic": OUT,
                "partition": 0,
                "value": f"of-epoch-{epoch}",
                "offset": offset,
                "producer_id": 999,
                "producer_epoch": epoch,
                "transaction": f"of-epoch-{epoch}",
            }
        )
    return {"zombie write": 1}, "of-epoch-7"


def stale_offset(world: World) -> Planted:
    """The group's offset, asked for at the end, is one that was overwritten."""
    final = [line for line in world.lines if line["kind"] == "committed"][-1]
    found = [where for where, offset in final["offsets"].items() if offset]
    where = choose(world, found)
    writers = [one for one in transactions(world, "committed") if where in one.offsets]
    if not writers or not all(end_of(world, one, "ok") for one in writers):
        return None
    final["offsets"][where] = choose(
        world,
        [
            None,
            *(
                one.offsets[where]
                for one in writers
                if one.offsets[where] < final["offsets"][where]
            ),
        ],
    )
    return {"offset-output divergence": 1}, where


def offset_of_an_aborted_transaction(world: World) -> Planted:
    final = [line for line in world.lines if line["kind"] == "committed"][-1]
    found = [
        (line, where)
        for line in world.lines
        if line["kind"] == "abort"
        for write in world.lines
        if write["kind"] == "offsets"
        and write["group"] == GROUP
        and write["transaction"] == line["transaction"]
        for where in write["offsets"]
    ]
    chosen = choose(world, found)
    if chosen is None:
        return None
    write = next(
        line
        for line in world.lines
        if line["kind"] == "offsets"
        and line["group"] == GROUP
        and line["transaction"] == chosen[0]["transaction"]
    )
    # An offset that no other transaction committed.
    write["offsets"][chosen[1]] = final["offsets"][chosen[1]] = 10_000
    return {"offset-output divergence": 1}, "10000"


def offset_of_the_first_of_two(world: World) -> Planted:
    """Two transactions wrote an offset; that of the one that wrote first holds, for its commit."""
    for number, kind in enumerate(("offsets", "offsets", "commit", "commit")):
        name = f"late-{number % 2 if kind == 'offsets' else 3 - number}"
        of = {"group": "late", "offsets": {"in-0": number}} if kind == "offsets" else {}
        at_the_end(world, {"kind": kind, "transaction": name, **of})
    at_the_end(world, {"kind": "committed", "group": "late", "offsets": {"in-0": 0}})
    return {"offset-output divergence": 1}, "'late' at in-0 was read as offset 0"


def input_taken_twice(world: World) -> Planted:
    found = [
        (line, one, where)
        for one in transactions(world, "committed")
        for where in one.offsets
        for line in world.lines
        if line["kind"] == "poll"
        and line.get("transaction") not in (None, one.name)
        and line["records"].get(where)
        and end_of(world, one, "ok")
        and one.offsets[where] > line["_ranges"][where][1]
        and any(other.name == line["transaction"] for other in transactions(world, "committed"))
    ]
    chosen = choose(world, found)
    if chosen is None:
        return None
    line, transaction, where = chosen
    offset, _ = line["records"][where][0]
    early(world, where, offset, {"transaction": transaction.name})
    return {"offset-output divergence": 1}, transaction.name


def input_left_out(world: World) -> Planted:
    """The group went on behind a record that its transaction was not given."""
    names = {one.name for one in transactions(world, "committed") if one.offsets}
    found = [
        (line, where)
        for line in world.lines
        if line["kind"] == "poll" and line.get("transaction") in names
        for where, given in line["records"].items()
        if len(given) > 1
    ]
    chosen = choose(world, found)
    if chosen is None:
        return None
    line, where = chosen
    offset = line["records"][where][-1][0]
    taken = [
        one
        for one in world.lines
        if one["kind"] == "poll" and "transaction" in one and returned(one, where, offset)
    ]
    if len(taken) > 1:
        return None
    value = value_at(world, where, offset)
    remove(line, where, offset)
    return {"poll skip": 1, "offset-output divergence": 1}, value


def input_that_nobody_polled(world: World) -> Planted:
    """Acknowledged at their offsets, and a group went on behind them."""
    of = {"topic": "late", "partition": 0, "values": ["kept", "left", "left as well"]}
    at_the_end(world, {"kind": "send", "offset": 4, **of})
    given = {"records": {"late-0": [[4, "kept"]]}, "next": {"late-0": 5}}
    at_the_end(world, {"kind": "poll", "transaction": "late", **given})
    offsets = {"group": "late", "offsets": {"late-0": 7}}
    at_the_end(world, {"kind": "offsets", "transaction": "late", **offsets})
    at_the_end(world, {"kind": "commit", "transaction": "late"})
    return {"offset-output divergence": 2}, "left as well"


def first_input_of_an_aborted_transaction(world: World) -> Planted:
    """The consumer did not go back to it."""
    of = {"topic": "late", "partition": 0, "values": ["first", "second"]}
    at_the_end(world, {"kind": "send", "offset": 0, **of})
    for number, value in enumerate(of["values"]):
        given = {"records": {"late-0": [[number, value]]}, "next": {"late-0": number + 1}}
        name = {"transaction": f"late-{number}"}
        at_the_end(world, {"kind": "poll", **given, **name})
        world.lines[-1]["client"] = "late-consumer"
        if number:
            offsets = {"group": "late", "offsets": {"late-0": number + 1}}
            at_the_end(world, {"kind": "offsets", **name, **offsets})
        at_the_end(world, {"kind": "commit" if number else "abort", **name})
    return {"offset-output divergence": 1}, "first"


def invisible_record(world: World) -> Planted:
    """The last record of a partition is there, and no reader of it gets so far."""
    where = choose(world, ["plain-0", "plain-1"])
    visible = [
        offset
        for offset, entry in enumerate(world.log.entries[where])
        if entry.value is not None and send_of(world, entry.value)["outcome"] == "ok"
    ]
    if not visible:
        return None
    offset = visible[-1]
    value = value_at(world, where, offset)
    if send_of(world, value)["partition"] is None:
        return None
    for line in world.lines:
        if line["kind"] == "poll" and where in line["_ranges"]:
            given = line["records"].get(where, [])
            line["records"][where] = [one for one in given if one[0] < offset]
            line["next"][where] = min(line["next"][where], offset)
        if line["kind"] == "seek" and where in line["positions"]:
            line["positions"][where] = min(line["positions"][where], offset)
    return {"invisible record": 1}, value


PLANTS: list[Callable[[World], Planted]] = [
    lost_write,
    lost_transaction,
    lost_tail,
    lost_at_the_tail,
    lost_by_counting,
    torn_transaction,
    decided_twice,
    duplicate,
    aborted_read,
    read_of_a_failed_send,
    precommitted_read,
    circular_information_flow,
    transaction_that_reads_itself,
    inconsistent_offsets,
    strayed_record,
    non_monotonic_send,
    non_monotonic_poll,
    position_before_what_was_polled,
    repeated_poll,
    poll_skip,
    zombie_write,
    zombie_commit,
    zombie_that_only_its_init_names,
    zombie_in_the_log,
    stale_offset,
    offset_of_an_aborted_transaction,
    offset_of_the_first_of_two,
    input_taken_twice,
    input_left_out,
    input_that_nobody_polled,
    first_input_of_an_aborted_transaction,
    invisible_record,
]
