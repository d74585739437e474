"""What a reader has to know of the machine to make sense of a figure."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import eoslog
from eoslog.bindings.record_batch import crc32c_implementation

# Taken when the run begins: later the benches themselves are the load.
LOAD_WHEN_BEGUN = f"{os.getloadavg()[0]:.1f}"


def describe_machine(path: Path, size_name: str) -> dict[str, str]:
    """Facts about processor, memory, kernel and the file system that holds `path`, as text."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": f"{processor_name()}, {os.cpu_count()} logical",
        "memory": f"{pages / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file system": file_system_of(path),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "eoslog": eoslog.__version__ if hasattr(eoslog, "__version__") else "",
        "CRC-32C": crc32c_implementation(),
        "load of the machine when begun": LOAD_WHEN_BEGUN,
        "sizes": size_name,
    }


def processor_name() -> str:
    """The processor's model as the kernel names it, else its architecture."""
    for line in read_lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def file_system_of(path: Path) -> str:
    """Type and options of the file system that holds a path."""
    best = ""
    found = "unknown"
    resolved = str(path.resolve())
    for line in read_lines("/proc/self/mounts"):
        _, mounted, kind, options, *_ = line.split()
        inside = resolved == mounted or resolved.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best = mounted
            found = f"{kind} ({options})"
    return found


def read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
