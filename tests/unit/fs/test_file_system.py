"""Which file systems other hosts may have mounted too."""

import pytest

from eoslog.fs import file_system
from eoslog.fs.file_system import Mount, boot_id, mount_of, process_namespace

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:50 / /mnt/far rw,relatime shared:7 master:2 - nfs4 server:/export rw,vers=4.2
41 40 0:51 / /mnt/far/near rw - tmpfs tmpfs rw
42 27 0:52 / /mnt/with\\040blank\\134and\\011more rw - fuse.sshfs me@host: rw
43 27 0:53 / /mnt/twice rw - nfs server:/a rw
44 27 0:54 / /mnt/twice rw - xfs /dev/vdb rw
not a mount
45 27 0:55 / /mnt/short rw
"""


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    monkeypatch.setattr(file_system, "MOUNTS", path)
    monkeypatch.setattr(file_system.os.path, "realpath", str)


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/home/store", "ext4", False),
        ("/mnt/far/store", "nfs4", True),
        ("/mnt/far", "nfs4", True),
        ("/mnt/farther", "ext4", False),
        ("/mnt/far/near/store", "tmpfs", False),
        ("/mnt/with blank\\and\tmore/store", "fuse.sshfs", True),
        ("/mnt/twice/store", "xfs", False),
        ("/mnt/short/store", "ext4", False),
        ("/", "ext4", False),
    ],
)
def test_the_mount_of_a_path_is_the_innermost_one(mounts, path, kind, network):
    found = mount_of(path)
    assert (found.kind, found.network) == (kind, network)


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        ("ext4", False),
        ("overlay", False),
        ("fuseblk", False),
        ("fuse", False),
        ("fuse.fuse-overlayfs", False),
        ("fuse.s3fs", True),
        ("fuse.glusterfs", True),
        ("cifs", True),
        ("9p", True),
        ("virtiofs", True),
        ("lustre", True),
        ("", False),
    ],
)
def test_kinds(kind, network):
    assert Mount(kind, "source", "/at").network is network


def test_where_the_kernel_says_nothing_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(file_system, "MOUNTS", tmp_path / "gone")
    monkeypatch.setattr(file_system, "BOOT_ID", tmp_path / "gone")
    assert mount_of(tmp_path).network is False
    monkeypatch.setattr(file_system, "PROCESS_NAMESPACE", tmp_path / "gone")
    assert boot_id() == process_namespace() == ""


def test_this_machine_has_a_root_and_a_boot(tmp_path):
    assert mount_of(tmp_path).mounted_at.startswith("/")
    assert len(boot_id()) == 36
    assert process_namespace().startswith("pid:[")
