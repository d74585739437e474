"""Read one byte too many in a native function of a build with sanitizers: it must be reported.

Otherwise what is run here is another build, or the sanitizers were not loaded, and a run without a
report would say nothing. To be run in the copy, with the sanitizers' libraries preloaded.
"""

import ctypes
import subprocess
import sys
from pathlib import Path

from eoslog.bindings import crc32c_testing

BLOCK_BYTES = 32
WANTED = "heap-buffer-overflow"


def read_too_far() -> None:
    """By the portable implementation: every CPU has it, and it reads the last byte by itself."""
    allocate = ctypes.CDLL(None).malloc
    allocate.restype = ctypes.c_void_p
    too_long = (ctypes.c_uint8 * (BLOCK_BYTES + 1)).from_address(allocate(BLOCK_BYTES))
    portable = crc32c_testing.implementations().index("table")
    crc32c_testing.checksum_by(portable, too_long)


def main() -> None:
    module = Path(crc32c_testing.__file__)
    if Path.cwd() not in module.resolve().parents:
        sys.exit(f"error: {module} is not of the build in {Path.cwd()}")
    if b"__ubsan_handle" not in module.read_bytes():
        sys.exit(f"error: {module} was built without the sanitizer of undefined behaviour")
    done = subprocess.run(
        [sys.executable, __file__, "read too far"], capture_output=True, text=True, check=False
    )
    if done.returncode == 0 or WANTED not in done.stderr:
        sys.exit(f"error: a planted overflow was not found: {done.returncode}\n{done.stderr}")


if __name__ == "__main__":
    read_too_far() if sys.argv[1:] else main()
