"""Compile each header of native/include alone, with the warnings that generated C cannot bear."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "native" / "include"
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-Werror"]
# A header's static functions are unused when nothing includes it.
FLAGS = ["-std=gnu11", "-O2", "-fsyntax-only", *WARNINGS, "-Wno-unused-function"]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--compiler", default="cc", help="the C compiler's command")
    compiler = shlex.split(arguments.parse_args().compiler)
    headers = sorted(HEADERS.glob("*.h"))
    failed = []
    for header in headers:
        # Through standard input: a header given by name is warned of as such.
        source = f'#include "{header.name}"\ntypedef int only_so_that_the_file_is_not_empty;\n'
        command = [*compiler, *FLAGS, "-I", str(HEADERS), "-x", "c", "-"]
        if subprocess.run(command, input=source, text=True, check=False).returncode != 0:
            failed.append(header.name)
    print(f"headers: {len(headers) - len(failed)} of {len(headers)} clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
