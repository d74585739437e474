"""Java, and Kafka's jars as Maven assembles them, once, in build/broker."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from eoslog.spark.java import JavaNotFoundError, find_java

POM = Path(__file__).with_name("pom.xml")
ASSEMBLED = Path(__file__).resolve().parents[2] / "build" / "broker"
ASSEMBLY_TIMEOUT_S = 300


@functools.cache
def java_command() -> tuple[str, ...]:
    """The start of a command line that runs a main class of Kafka's; skips the test if none can."""
    try:
        java = find_java().home / "bin" / "java"
    except JavaNotFoundError as error:
        pytest.skip(f"Kafka's broker needs a Java: {error}")
    # Compile quickly, collect with one thread: each of these processes lives for seconds.
    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
    return (str(java), *options, "-cp", f"{_jars()}/*")


def _jars() -> Path:
    """The folder with the jars; assembled if the pom changed since the last time."""
    jars = ASSEMBLED / hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("Kafka's broker is assembled by Maven, and there is no `mvn`")
    ASSEMBLED.mkdir(parents=True, exist_ok=True)
    unfinished = ASSEMBLED / f"unfinished-{os.getpid()}"
    command = [maven, "--batch-mode", "--quiet", f"--file={POM}"]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={unfinished}"]
    try:
        made = subprocess.run(
            command, capture_output=True, text=True, timeout=ASSEMBLY_TIMEOUT_S, check=False
        )
        if made.returncode != 0:
            said = (made.stdout + made.stderr).strip().splitlines() or ["nothing"]
            pytest.skip(f"Maven could not assemble Kafka's broker; it said: {said[0]}")
        unfinished.rename(jars)
    except subprocess.TimeoutExpired:
        pytest.skip(f"Maven did not assemble Kafka's broker within {ASSEMBLY_TIMEOUT_S} seconds")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return jars
