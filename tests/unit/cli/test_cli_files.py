"""`eoslog import` and `eoslog export`: what they print, and their mistakes."""

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call
from stores import values_of

import eoslog
from eoslog.exchange import text_source
from eoslog.exchange.file_progress import ImportTransactions


@pytest.fixture
def path(store):
    store.create_topic("t")
    store.close()
    return store.path


def test_files_go_in_and_out(path, tmp_path):
    log, out = tmp_path / "app.log", tmp_path / "out.jsonl"
    log.write_bytes(b"one\ntwo\nthr")
    answer = call("import", "t", log, "--lines", "--store", path)
    assert answer.status == DONE
    assert answer.stdout == f"{log}: 2 records appended to t, 0 were there already\n"
    assert answer.stderr == (
        f"{log}, line 3: left out, its end is not there yet: 3 bytes (--whole takes it)\n"
    )
    answer = call("import", "t", log, "--format", "lines", "--whole", "--store", path, "--json")
    assert (answer.json["records"], answer.json["already_there"]) == (1, 2)
    answer = call("export", "t", out, "--store", path)
    assert answer.stdout == f"{out}: 3 records of 1 partition, 0.0 MB\n"
    printed = call("export", "t", "--store", path).stdout
    assert printed == out.read_text() == call("consume", "t", "--json", "--store", path).stdout
    with eoslog.open(tmp_path / "second", create=True) as second:
        second.create_topic("t")
        second.create_topic("u")
    answer = call("import", "t", out, "--store", tmp_path / "second")
    assert answer.stdout.startswith(f"{out}: 3 records appended")
    answer = call(
        *("import", "u", "-", "--name", "n", "--store", tmp_path / "second"), stdin=printed
    )
    assert answer.stdout == "n: 3 records appended to u, 0 were there already\n"
    with eoslog.open(tmp_path / "second") as second:
        for topic in ("t", "u"):
            assert values_of(second, topic) == [b"one", b"two", b"thr"]


def test_ranges_of_an_export(path):
    call("produce", "t", "--store", path, stdin=b"a\nb\nc\n")
    part = call("export", "t", "--from", 1, "--to", 2, "--store", path).json_lines
    assert [one["value"] for one in part] == ["b"]
    assert call("export", "t", "--from", "2100-01-01T00:00", "--store", path).stdout == ""
    assert len(call("export", "t", "--to", "2100-01-01", "--store", path).json_lines) == 3
    csv = call("export", "t", "--format", "csv", "--partition", 0, "--store", path).stdout
    assert csv.startswith("topic,partition,offset,timestamp,key,value,headers\nt,0,0,")
    answer = call("export", "t", "--store", path, "--json")
    assert_mistake(answer, WRONG_USE, "name a FILE")


def test_an_interrupt_says_what_is_in(path, tmp_path, monkeypatch):
    log = tmp_path / "app.log"
    log.write_bytes(b"one\n" * 100)
    monkeypatch.setattr(text_source, "CHUNK_BYTES", 40)
    commit = ImportTransactions.commit

    def stop(self, progress):
        if progress.records > 20:
            raise KeyboardInterrupt
        commit(self, progress)

    monkeypatch.setattr(ImportTransactions, "commit", stop)
    answer = call("import", "t", log, "--lines", "--store", path)
    assert answer.status == FAILED
    assert "the first 20 records of the file are in t: the next import goes on" in answer.stderr
    monkeypatch.setattr(ImportTransactions, "commit", commit)
    answer = call("import", "t", log, "--lines", "--store", path)
    assert answer.stdout == f"{log}: 80 records appended to t, 20 were there already\n"


def test_mistakes(path, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"id": 1}\n')
    answer = call("import", "t", bad, "--store", path)
    assert_mistake(answer, FAILED, "bad.jsonl, line 1", "no record of the file is in t")
    assert_mistake(call("import", "t", tmp_path / "no", "--store", path), FAILED, "No such file")
    assert_mistake(call("import", "t", "-", "--store", path), WRONG_USE, "needs a --name")
    answer = call("import", "t", bad, bad, "--name", "x", "--store", path)
    assert_mistake(answer, WRONG_USE, "--name is that of one file")
    answer = call("import", "t", bad, "--lines", "--format", "csv", "--store", path)
    assert_mistake(answer, WRONG_USE, "--lines")
    answer = call("export", "t", "--from", "soon", "--store", path)
    assert_mistake(answer, WRONG_USE, "no time like 2026-01-31T12:00:00.000 and no offset")
    answer = call("export", "t", "--from", 7, "--store", path)
    assert_mistake(answer, FAILED, "no offset 7 in t-0, which has 0 to 0")
    answer = call("export", "t", tmp_path / "none" / "x", "--store", path)
    assert_mistake(answer, FAILED, "No such file or directory")
