"""Fuzz one target: `run.py TARGET COVERAGE_LIBRARY [libFuzzer's arguments]`; see `make fuzz`."""

import ctypes
import sys

import atheris

with atheris.instrument_imports(include=["eoslog"], enable_loader_override=False):
    from fuzz.all_targets import TARGETS


def main() -> None:
    name, library, *arguments = sys.argv[1:]
    function = TARGETS[name]
    atheris.Setup([name, *arguments], function)
    from atheris import core_with_libfuzzer

    if ctypes.CDLL(library).coverage_begin(core_with_libfuzzer.__file__.encode()) != 0:
        sys.exit(f"{core_with_libfuzzer.__file__} has no libFuzzer: is another fuzzer preloaded?")
    atheris.Fuzz()


if __name__ == "__main__":
    main()
