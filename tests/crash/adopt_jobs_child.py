"""Commits staged jobs whose files become segments, and says what was committed, until it dies.

`python adopt_jobs_child.py STORE DURABILITY FIRST`: versions from FIRST on.
"""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from staged_jobs import APP, stage_job

import eoslog
from eoslog.staging import staged_job

RECORDS = 40


def numbers_of(version: int) -> range:
    return range(version * RECORDS, (version + 1) * RECORDS)


def main(path: str, durability: eoslog.common.durability.Durability, first: str) -> None:
    staged_job.WHOLE_FILE_BYTES_MIN = 0
    with eoslog.open(path, durability=durability) as store:
        print("open", flush=True)
        for version in itertools.count(int(first)):
            run_id = store.begin_run(APP)
            messages = stage_job(Path(path), run_id, numbers_of(version), durability=durability)
            store.commit_staged(APP, version, messages, run_id)
            print(version, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
