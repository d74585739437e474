"""A directory is removed whole, and an interrupt at any line of that is the interrupt, no error."""

import errno

import pytest
from crash.interrupted_lines import interrupted_at

from eoslog.fs.private_files import remove_directory


def is_ours(frame):
    return frame.f_code.co_filename.endswith(("/eoslog/fs/private_files.py", "/pathlib.py"))


@pytest.fixture
def make(tmp_path):
    def made():
        inner = tmp_path / "tree" / "inner"
        inner.mkdir(parents=True, exist_ok=True)
        for folder in (inner, inner.parent):
            (folder / "one").write_bytes(b"1")
            (folder / "two").write_bytes(b"2")
        if not (inner / "link").is_symlink():
            (inner / "link").symlink_to(tmp_path / "elsewhere")
        return tmp_path / "tree"

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    return made


def test_all_of_it_goes_and_nothing_behind_a_link(make, tmp_path):
    tree = make()
    remove_directory(tree)
    assert not tree.exists()
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_a_link_is_refused(make, tmp_path):
    make()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link") as raised:
        remove_directory(link)
    assert raised.value.errno == errno.ENOTDIR
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_an_interrupt_at_any_line_leaves_the_rest_to_the_next_call(make):
    line, interrupted = 0, True
    while interrupted:
        line += 1
        tree = make()
        with interrupted_at(line, is_ours):
            try:
                remove_directory(tree)
                interrupted = False
            except KeyboardInterrupt:
                pass
        if tree.exists():
            remove_directory(tree)
        assert not tree.exists()
    assert line > 20
