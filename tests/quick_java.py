"""Options for Java processes that live for seconds or minutes, as all of the tests' do."""

import os

# Compile quickly, collect with one thread.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What Spark's own scripts hand to the Java that starts a driver, and to the driver's.
_NAMES = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")


def make_java_quick() -> None:
    """For every driver that is started from here on; what the environment says already stays."""
    for name in _NAMES:
        os.environ.setdefault(name, QUICK_JAVA)
