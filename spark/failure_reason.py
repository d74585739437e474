"""Reason why a Spark job failed, in one line, out of the pages that Spark prints about it."""

import re

# ": java.lang.SomeException: " stands before the words that matter.
_JAVA_EXCEPTION = re.compile(r"^(?:: |Caused by: )(?:[a-z]\w*\.)*(?P<reason>.*)")


def reason_of(error: BaseException) -> str:
    """The line that says why: the last one of a worker's traceback, or that the worker died.

    If no worker said anything it is the innermost exception of Java, with the lines that go on from
    its first one.
    """
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    from_python = in_traceback = in_java_message = False
    for line in lines:
        java = _JAVA_EXCEPTION.match(line)
        if "Traceback (most recent call last)" in line:
            in_traceback = True
        elif in_traceback and line and not line[0].isspace():
            reason, from_python, in_traceback = line, True, False
        elif "Python worker exited unexpectedly" in line:
            reason, from_python = line, True
        elif java is not None and not from_python:
            reason, in_java_message = java["reason"], True
        elif line.startswith("\t"):
            in_java_message = False
        elif in_java_message and line.startswith(" "):
            reason = f"{reason} {line.strip()}"
    return reason.strip()
