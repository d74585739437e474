"""The few looks at files that a copy needs, on whatever file system Spark has them on."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from eoslog.spark.active_session import java_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_path(path: str) -> str:
    """A relative path as an absolute one: Spark's processes may have other working directories."""
    return path if "://" in path or path.startswith(("/", "file:")) else str(Path(path).absolute())


class HadoopFiles:
    """A directory as Spark sees it, through the file system classes that Spark itself uses."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        java, self._classes = java_of(spark)
        self._root = self._classes.org.apache.hadoop.fs.Path(path)
        self._files = self._root.getFileSystem(java.sparkContext().hadoopConfiguration())
        self._root = self._files.makeQualified(self._root)

    @property
    def url(self) -> str:
        """The directory with its scheme, the same text whichever way it was named."""
        return str(self._root.toString())

    def exists(self, name: str = "") -> bool:
        return bool(self._files.exists(self._child(name)))

    def names(self, name: str = "") -> list[str]:
        """The names in a directory; none if it does not exist."""
        if not self.exists(name):
            return []
        return [
            str(found.getPath().getName()) for found in self._files.listStatus(self._child(name))
        ]

    def remove(self, name: str) -> None:
        """Remove one file; it may be gone already."""
        self._files.delete(self._child(name), False)

    def _child(self, name: str) -> Any:
        return self._classes.org.apache.hadoop.fs.Path(self._root, name) if name else self._root
