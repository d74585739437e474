"""How xdist shares the tests out: by file, and all that use the session of Spark to one process."""

from xdist.scheduler import LoadFileScheduling

SPARK_FOLDER = "tests/spark/"


class OneSparkSession(LoadFileScheduling):
    """A second process would start a second Java, which is slow until it is warm."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPARK_FOLDER):
            return SPARK_FOLDER
        return super()._split_scope(nodeid)
