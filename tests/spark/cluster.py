"""A Spark standalone cluster whose workers are hosts of their own to Spark and, if wanted, to us.

To Spark a host is a name: each worker has a loopback address of its own. A worker that is `apart`
also has namespaces of its own, as on another machine: another host name, none of the driver's
processes, and the folders that are `hidden` from it are empty there.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from quick_java import QUICK_JAVA

from eoslog.spark import find_java

START_TIMEOUT_S = 120.0
NAMESPACES = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]


def why_not_apart() -> str | None:
    """Why a worker can't have namespaces of its own here; None if it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run(
        [*NAMESPACES, "sh", "-c", "hostname apart && mount -t proc proc /proc"],
        capture_output=True,
        text=True,
    )
    return None if tried.returncode == 0 else f"unshare: {tried.stderr.strip()}"


class Cluster:
    """A master; `add_worker` gives it workers. `close` ends all of it."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._home = Path(pyspark.__file__).parent
        arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._start("master", "master.Master", arguments, "127.0.0.1", [])
        try:
            self.master = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
        except BaseException:
            self.close()
            raise

    def add_worker(
        self,
        name: str,
        address: str,
        cores: int,
        *,
        apart: bool = False,
        hidden: Sequence[Path] = (),
    ) -> None:
        """Start a worker. Spark knows it by its address; its host has the name if it is apart."""
        before = []
        if apart:
            steps = [f"hostname {name}", "mount -t proc proc /proc"]
            steps += [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in hidden]
            before = [*NAMESPACES, "sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh"]
        arguments = ["--host", address, "--port", "0", "--webui-port", "0"]
        arguments += ["--cores", str(cores), "--memory", "1g"]
        arguments += ["--work-dir", str(self._folder / name), self.master]
        self._start(name, "worker.Worker", arguments, address, before)

    def wait_until_up(self) -> None:
        for name in list(self._processes)[1:]:
            self._wait_for(name, "(Successfully registered with master)")

    def lose(self, name: str) -> None:
        """A worker's host dies, with all that runs on it."""
        with suppress(ProcessLookupError):
            os.killpg(self._processes[name].pid, signal.SIGKILL)
        self._processes[name].wait()

    def close(self) -> None:
        for name in self._processes:
            self.lose(name)

    def _start(
        self, name: str, main: str, arguments: Sequence[str], address: str, before: Sequence[str]
    ) -> None:
        command = [*before, str(self._home / "bin" / "spark-class")]
        command += [f"org.apache.spark.deploy.{main}", *arguments]
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": address,
            "SPARK_LOCAL_HOSTNAME": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Dspark.master.rest.enabled=false",
        }
        with open(self._log(name), "wb") as printed:
            self._processes[name] = subprocess.Popen(
                command,
                stdout=printed,
                stderr=printed,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_for(self, name: str, pattern: str) -> str:
        until_s = time.monotonic() + START_TIMEOUT_S
        while True:
            ended = self._processes[name].poll() is not None
            printed = self._log(name).read_text(errors="replace")
            if found := re.search(pattern, printed):
                return found.group(1)
            if ended or time.monotonic() > until_s:
                raise AssertionError(f"no {pattern!r} of the {name}:\n{printed[-4000:]}")
            time.sleep(0.05)
