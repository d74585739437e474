"""Options for Java processes that live for seconds or minutes, as all of the tests' do."""

import os

# Compile quickly, collect with one thread, and believe the classes of Spark, of which a start
# loads 20,000: to verify them takes a quarter of its CPU time.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# What Spark's own scripts hand to the Java that starts a driver, and to the driver's.
_NAMES = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")


def make_java_quick() -> None:
    """For every driver that is started from here on; what the environment says already stays."""
    for name in _NAMES:
        os.environ.setdefault(name, QUICK_JAVA)
