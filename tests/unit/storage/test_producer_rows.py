"""LMDB behind the log: producers' rows, and what becomes of damage."""

import errno

import lmdb
import pytest

from eoslog.bindings.producer_state import empty_row
from eoslog.errors import LogClosedError, StoreFullError
from eoslog.fs.identity_files import new_id
from eoslog.storage import lmdb_environment
from eoslog.storage.clean_close import has_lmdb_mark, write_lmdb_mark
from eoslog.storage.lmdb_environment import LmdbEnvironment, StateStoreDamagedError
from eoslog.storage.producer_rows import ProducerRows, RowsHead, count_producer_rows

TOPIC, OTHER = new_id(), new_id()


def opened(tmp_path):
    return ProducerRows(LmdbEnvironment(tmp_path / "lmdb"), TOPIC, 0)


@pytest.fixture
def rows(tmp_path):
    store = opened(tmp_path)
    yield store
    store.environment.close()


def write(rows, ids, offset):
    rows.write_rows(b"".join(map(empty_row, ids)), offset)


def test_rows_come_back_with_their_count_and_offset(rows, tmp_path):
    assert rows.read_head() is None
    write(rows, [5, 3, 1 << 62], 10)
    write(rows, [3, 4], 20)
    rows.environment.close()
    again = opened(tmp_path)
    assert again.read_head() == RowsHead(20, 4)
    assert [one for one, _ in again.rows_after(0, 10)] == [3, 4, 5, 1 << 62]
    assert [one for one, _ in again.rows_after(4, 2)] == [4, 5]
    assert again.read_row(5) == empty_row(5)
    assert again.read_row(6) is None
    assert count_producer_rows(again.environment) == 4
    again.environment.close()


def test_its_name_is_on_the_disk_before_anything_is_written_to_it(tmp_path, monkeypatch):
    """A power cut would take it, with the only copy of producers whose batches were deleted."""
    data = tmp_path / "lmdb" / lmdb_environment.DATA_FILE_NAME
    synced = []

    def sync(path):
        synced.append((path, data.stat().st_size))

    monkeypatch.setattr(lmdb_environment, "sync_directory", sync)
    before_writing = [(tmp_path / "lmdb", 0), (tmp_path, 0)]
    LmdbEnvironment(tmp_path / "lmdb").close()
    assert synced == before_writing
    LmdbEnvironment(tmp_path / "lmdb").close()
    assert synced == before_writing
    data.write_bytes(b"")  # Who made it died before it could sync.
    LmdbEnvironment(tmp_path / "lmdb").close()
    assert synced == 2 * before_writing


def test_partitions_do_not_see_each_others_rows(rows):
    second, other = (ProducerRows(rows.environment, *one) for one in ((TOPIC, 1), (OTHER, 0)))
    write(rows, [1, 2], 5)
    write(second, [2, 3], 6)
    write(other, [4], 7)
    assert [one for one, _ in rows.rows_after(0, 10)] == [1, 2]
    rows.delete_all()
    assert rows.read_head() is None
    assert rows.rows_after(0, 10) == []
    assert second.read_head() == RowsHead(6, 2)
    assert other.read_head() == RowsHead(7, 1)


def test_deleted_producers_are_not_counted(rows):
    write(rows, [1, 2, 3], 5)
    rows.delete_producers([2, 9])
    assert rows.read_head() == RowsHead(5, 2)
    assert rows.read_row(2) is None
    rows.delete_producers([])


def test_many_rows_go_in_pieces(rows, monkeypatch):
    monkeypatch.setattr("eoslog.storage.producer_rows.ROWS_PER_TRANSACTION", 10)
    write(rows, range(95), 5)
    rows.delete_all()
    assert count_producer_rows(rows.environment) == 0


def test_the_map_grows_when_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("eoslog.storage.lmdb_environment.MAP_BYTES_INITIAL", 1 << 16)
    rows = opened(tmp_path)
    write(rows, range(5000), 7)
    assert rows.read_head() == RowsHead(7, 5000)
    rows.environment.close()
    rows = opened(tmp_path)
    assert rows.read_head() == RowsHead(7, 5000)
    rows.environment.close()


def test_a_file_that_another_process_lets_grow_while_it_is_opened_is_not_damaged(
    tmp_path, monkeypatch
):
    rows = opened(tmp_path)
    write(rows, range(100), 7)
    rows.environment.close()
    (file,) = tmp_path.rglob("data.mdb")
    really, sizes = lmdb.open, []

    def late(*arguments, **settings):
        sizes.append(settings["map_size"])
        if len(sizes) == 1:
            with file.open("r+b") as grown:
                grown.truncate(1 << 26)
            raise lmdb.MapResizedError("mdb_txn_begin")
        return really(*arguments, **settings)

    monkeypatch.setattr(lmdb, "open", late)
    rows = opened(tmp_path)
    assert rows.read_head() == RowsHead(7, 100)
    assert sizes[1:] == [1 << 26]
    rows.environment.close()


def test_the_mark_of_a_clean_close_comes_back(rows):
    assert not has_lmdb_mark(rows.environment, "mark")
    write_lmdb_mark(rows.environment, "mark")
    assert has_lmdb_mark(rows.environment, "mark")
    assert not has_lmdb_mark(rows.environment, "another")
    assert not has_lmdb_mark(rows.environment, "")


@pytest.mark.parametrize("content", [b"", b"no database at all" * 1000, bytes(40_960)])
def test_an_environment_that_cannot_be_read_is_begun_anew(tmp_path, content):
    rows = opened(tmp_path)
    write(rows, [1], 5)
    rows.environment.close()
    (tmp_path / "lmdb" / "data.mdb").write_bytes(content)
    rows = opened(tmp_path)
    assert rows.read_head() is None
    write(rows, [2], 6)
    assert rows.read_head() == RowsHead(6, 1)
    rows.environment.close()


@pytest.mark.parametrize("what", ["file", "link"])
def test_something_else_in_its_place_is_replaced(tmp_path, what):
    if what == "file":
        (tmp_path / "lmdb").write_text("a file")
    else:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "data.mdb").write_bytes(b"x" * 9000)
        (tmp_path / "lmdb").symlink_to(tmp_path / "elsewhere")
    rows = opened(tmp_path)
    write(rows, [1], 5)
    rows.environment.close()
    if what == "link":
        assert (tmp_path / "elsewhere" / "data.mdb").read_bytes() == b"x" * 9000


def test_a_row_that_does_not_match_its_checksum_is_noticed(tmp_path):
    rows = opened(tmp_path)
    write(rows, [1, 2], 5)
    with rows.environment.lmdb.begin(write=True) as transaction:
        cursor = transaction.cursor(db=rows.environment.databases[b"producers"])
        cursor.first()
        broken = bytearray(cursor.value())
        broken[-1] ^= 1
        transaction.put(cursor.key(), bytes(broken), db=rows.environment.databases[b"producers"])
    generation = rows.environment.generation
    with pytest.raises(StateStoreDamagedError, match="checksum"):
        rows.read_row(1)
    assert rows.environment.generation == generation + 1
    assert rows.read_row(1) is None
    rows.environment.close()


def test_a_full_disk_is_named_and_changes_nothing(rows, monkeypatch):
    write(rows, [1], 5)
    begin = rows.environment.lmdb.begin

    class Full:
        def __getattr__(self, name):
            return getattr(environment, name)

        def begin(self, write):
            if write:
                raise lmdb.DiskError(f"mdb_txn_commit: No space left ({errno.ENOSPC})")
            return begin(write=False)

    environment = rows.environment.lmdb
    rows.environment.lmdb = Full()
    with pytest.raises(StoreFullError):
        write(rows, [2], 6)
    assert rows.read_head() == RowsHead(5, 1)
    rows.environment.lmdb = environment


def test_a_closed_environment_refuses(rows):
    rows.environment.close()
    rows.environment.close()
    with pytest.raises(LogClosedError):
        rows.read_head()
