"""A line on the terminal that shows how many tasks of Spark's running job are done."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.1


@contextmanager
def job_progress(spark: "SparkSession", console: Console, description: str) -> Iterator[None]:
    """Show the tasks of whatever job runs within; nothing if the console is no terminal."""
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    done = threading.Event()
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        watcher = threading.Thread(
            target=_watch, args=(spark, progress, description, done), daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _watch(
    spark: "SparkSession", progress: Progress, description: str, done: threading.Event
) -> None:
    tracker = spark.sparkContext.statusTracker()
    line = progress.add_task(description, total=None)
    while not done.wait(POLL_S):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        if running:
            progress.update(
                line,
                total=sum(stage.numTasks for stage in running),
                completed=sum(stage.numCompletedTasks for stage in running),
            )
