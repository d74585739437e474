"""LMDB behind the log: rows and states, and what becomes of damage."""

import errno

import lmdb
import pytest

from eoslog.bindings.producer_state import PRODUCER_ROW_BYTES, empty_row
from eoslog.errors import LogClosedError, StoreFullError
from eoslog.fs.identity_files import new_id
from eoslog.storage import lmdb_environment
from eoslog.storage.producer_state_store import ProducerStateStore, RowsHead, StateStoreDamagedError

TOPIC, OTHER = new_id(), new_id()


@pytest.fixture
def rows(tmp_path):
    store = ProducerStateStore(tmp_path)
    yield store
    store.close()


def write(store, ids, offset, topic=TOPIC, partition=0):
    data = b"".join(empty_row(producer_id) for producer_id in ids)
    store.write_rows(topic, partition, data, PRODUCER_ROW_BYTES, offset)


def test_rows_come_back_with_their_count_and_offset(rows, tmp_path):
    assert rows.read_head(TOPIC, 0) is None
    write(rows, [5, 3, 1 << 62], 10)
    write(rows, [3, 4], 20)
    rows.close()
    again = ProducerStateStore(tmp_path)
    assert again.read_head(TOPIC, 0) == RowsHead(20, 4)
    assert [producer_id for producer_id, _ in again.rows_after(TOPIC, 0, 0, 10)] == [
        3,
        4,
        5,
        1 << 62,
    ]
    assert [producer_id for producer_id, _ in again.rows_after(TOPIC, 0, 4, 2)] == [4, 5]
    assert again.read_row(TOPIC, 0, 5) == empty_row(5)
    assert again.read_row(TOPIC, 0, 6) is None
    assert again.producer_rows() == 4
    again.close()


def test_its_name_is_on_the_disk_before_anything_is_written_to_it(tmp_path, monkeypatch):
    """A power cut would take it, with the only copy of producers whose batches were deleted."""
    data = tmp_path / "lmdb" / lmdb_environment.DATA_FILE_NAME
    synced = []

    def sync(path):
        synced.append((path, data.stat().st_size))

    monkeypatch.setattr(lmdb_environment, "sync_directory", sync)
    before_writing = [(tmp_path / "lmdb", 0), (tmp_path, 0)]
    ProducerStateStore(tmp_path).close()
    assert synced == before_writing
    ProducerStateStore(tmp_path).close()
    assert synced == before_writing
    data.write_bytes(b"")  # Who made it died before it could sync.
    ProducerStateStore(tmp_path).close()
    assert synced == 2 * before_writing


def test_partitions_do_not_see_each_others_rows(rows):
    write(rows, [1, 2], 5)
    write(rows, [2, 3], 6, partition=1)
    write(rows, [4], 7, topic=OTHER)
    assert [one for one, _ in rows.rows_after(TOPIC, 0, 0, 10)] == [1, 2]
    rows.delete_partition(TOPIC, 0)
    assert rows.read_head(TOPIC, 0) is None
    assert rows.rows_after(TOPIC, 0, 0, 10) == []
    assert rows.read_head(TOPIC, 1) == RowsHead(6, 2)
    assert rows.read_head(OTHER, 0) == RowsHead(7, 1)


def test_deleted_producers_are_not_counted(rows):
    write(rows, [1, 2, 3], 5)
    rows.delete_producers(TOPIC, 0, [2, 9])
    assert rows.read_head(TOPIC, 0) == RowsHead(5, 2)
    assert rows.read_row(TOPIC, 0, 2) is None
    rows.delete_producers(TOPIC, 0, [])


def test_many_rows_go_in_pieces(rows, monkeypatch):
    monkeypatch.setattr("eoslog.storage.producer_state_store.ROWS_PER_TRANSACTION", 10)
    write(rows, range(95), 5)
    rows.delete_partition(TOPIC, 0)
    assert rows.producer_rows() == 0


def test_the_map_grows_when_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("eoslog.storage.lmdb_environment.MAP_BYTES_INITIAL", 1 << 16)
    rows = ProducerStateStore(tmp_path)
    write(rows, range(5000), 7)
    assert rows.read_head(TOPIC, 0) == RowsHead(7, 5000)
    rows.close()
    rows = ProducerStateStore(tmp_path)
    assert rows.read_head(TOPIC, 0) == RowsHead(7, 5000)
    rows.close()


def test_a_file_that_another_process_lets_grow_while_it_is_opened_is_not_damaged(
    tmp_path, monkeypatch
):
    rows = ProducerStateStore(tmp_path)
    write(rows, range(100), 7)
    rows.close()
    (file,) = tmp_path.rglob("data.mdb")
    opened, sizes = lmdb.open, []

    def late(*arguments, **settings):
        sizes.append(settings["map_size"])
        if len(sizes) == 1:
            with file.open("r+b") as grown:
                grown.truncate(1 << 26)
            raise lmdb.MapResizedError("mdb_txn_begin")
        return opened(*arguments, **settings)

    monkeypatch.setattr(lmdb, "open", late)
    rows = ProducerStateStore(tmp_path)
    assert rows.read_head(TOPIC, 0) == RowsHead(7, 100)
    assert sizes[1:] == [1 << 26]
    rows.close()


def test_states_and_marks_come_back(rows):
    rows.write_states([(b"\x03\xe8a", b"1"), (b"\x03\xe9b", b"2")], [(7, 30)])
    rows.write_states([(b"\x03\xe8a", b"3")], [(7, 40), (8, 1)])
    assert rows.read_state(b"\x03\xe8a") == b"3"
    assert rows.read_state(b"\x03\xe8x") is None
    assert rows.states_after(b"\x03\xe8", b"\x03\xe8", 9) == [(b"\x03\xe8a", b"3")]
    assert [rows.read_applied(number) for number in (7, 8, 9)] == [40, 1, None]
    assert rows.read_session() is None
    rows.write_session(b"mark")
    assert rows.read_session() == b"mark"
    rows.clear_states()
    assert rows.states_after(b"", b"", 9) == []
    assert rows.read_applied(7) is None


@pytest.mark.parametrize("content", [b"", b"no database at all" * 1000, bytes(40_960)])
def test_an_environment_that_cannot_be_read_is_begun_anew(tmp_path, content):
    rows = ProducerStateStore(tmp_path)
    write(rows, [1], 5)
    rows.close()
    (tmp_path / "lmdb" / "data.mdb").write_bytes(content)
    rows = ProducerStateStore(tmp_path)
    assert rows.read_head(TOPIC, 0) is None
    write(rows, [2], 6)
    assert rows.read_head(TOPIC, 0) == RowsHead(6, 1)
    rows.close()


@pytest.mark.parametrize("what", ["file", "link"])
def test_something_else_in_its_place_is_replaced(tmp_path, what):
    if what == "file":
        (tmp_path / "lmdb").write_text("a file")
    else:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "data.mdb").write_bytes(b"x" * 9000)
        (tmp_path / "lmdb").symlink_to(tmp_path / "elsewhere")
    rows = ProducerStateStore(tmp_path)
    write(rows, [1], 5)
    rows.close()
    if what == "link":
        assert (tmp_path / "elsewhere" / "data.mdb").read_bytes() == b"x" * 9000


def test_a_row_that_does_not_match_its_checksum_is_noticed(tmp_path):
    rows = ProducerStateStore(tmp_path)
    write(rows, [1, 2], 5)
    with rows.environment.lmdb.begin(write=True) as transaction:
        cursor = transaction.cursor(db=rows.environment.databases[b"producers"])
        cursor.first()
        broken = bytearray(cursor.value())
        broken[-1] ^= 1
        transaction.put(cursor.key(), bytes(broken), db=rows.environment.databases[b"producers"])
    generation = rows.generation
    with pytest.raises(StateStoreDamagedError, match="checksum"):
        rows.read_row(TOPIC, 0, 1)
    assert rows.generation == generation + 1
    assert rows.read_row(TOPIC, 0, 1) is None
    rows.close()


def test_a_full_disk_is_named_and_changes_nothing(rows, monkeypatch):
    write(rows, [1], 5)
    begin = rows.environment.lmdb.begin

    class Full:
        def __getattr__(self, name):
            return getattr(rows, name)

        def begin(self, write):
            if write:
                raise lmdb.DiskError(f"mdb_txn_commit: No space left ({errno.ENOSPC})")
            return begin(write=False)

    environment = rows.environment.lmdb
    rows.environment.lmdb = Full()
    with pytest.raises(StoreFullError):
        write(rows, [2], 6)
    assert rows.read_head(TOPIC, 0) == RowsHead(5, 1)
    rows.environment.lmdb = environment


def test_a_closed_environment_refuses(rows):
    rows.close()
    rows.close()
    with pytest.raises(LogClosedError):
        rows.read_head(TOPIC, 0)
