"""Run examples one after the other, each as the program it is, in one Spark session.

`examples_in_one_session.py FOLDER NAME [NAME ...]`. Arguments of an example stand after its name,
parted by commas: `compare_with_parquet.py,2000,100,1`. The first one starts the session, the others
find it there: their `stop` is noted, and it ends with the last of them. FOLDER gets a file for each
example: what it printed, what it raised, and how often it stopped its session.
"""

import json
import runpy
import sys
import traceback
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, arguments: list[str]) -> dict[str, object]:
    stops: list[SparkSession] = []

    def note(session: SparkSession) -> None:
        stops.append(session)

    SparkSession.stop = note  # type: ignore[method-assign]
    printed, raised = StringIO(), ""
    sys.argv = [name, *arguments]
    with redirect_stdout(printed):
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except BaseException:
            raised = traceback.format_exc()
    return {"printed": printed.getvalue(), "raised": raised, "stops": len(stops)}


def main(folder: str, calls: list[str]) -> None:
    stop = SparkSession.stop
    for call in calls:
        name, *arguments = call.split(",")
        (Path(folder) / name).write_text(json.dumps(run(name, arguments)), encoding="utf-8")
    if running := SparkSession.getActiveSession():
        stop(running)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
