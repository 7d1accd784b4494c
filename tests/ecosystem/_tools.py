"""How each framework is had and started: by its lock of ``python``, or by a class path.

Each program takes the options of ``tests.clients.copying`` and a folder for its state.
"""

import json
from collections.abc import Callable
from pathlib import Path

from tests.clients.install import python_environment
from tests.support.jvm.host import SOURCES, compiled, java_command
from tests.support.jvm.jars import class_path

HERE = Path(__file__).parent
STREAMS = (
    "session.timeout.ms=5000",
    "heartbeat.interval.ms=500",
    "commit.interval.ms=100",
    "max.poll.records=20",
)
Command = Callable[[str], list[str]]


def in_java(section: str, main: str, folder: Path, *settings: str) -> Command:
    """The command of a member whose classes, logs and state are in ``folder``.

    Raises JarsMissingError, JavaNotFoundError or JdkMissingError.
    """
    path = compiled(class_path(section), SOURCES / section, folder)

    def command(options: str) -> list[str]:
        given = json.loads(options)
        name = given["transactional_id"]
        arguments = [given["bootstrap"], given["source"], given["target"], given["group"]]
        arguments += [str(folder / f"state-{name}"), *settings]
        return java_command(path, main, *arguments, log=folder / f"{name}.log")

    return command


def in_python(tool: str, folder: Path) -> Command:
    """The command of a member whose state is in ``folder``. Raises NotInstalled."""
    python = str(environment(tool))
    program = str(HERE / "programs" / f"{tool}_copy.py")

    def command(options: str) -> list[str]:
        name = json.loads(options)["transactional_id"]
        return [python, program, options, str(folder / f"state-{name}")]

    return command


def environment(tool: str) -> Path:
    """The Python that has a tool. Raises NotInstalled."""
    return python_environment(HERE / "python" / f"{tool}.lock")


def started_by(tool: str, folder: Path) -> Command:
    """The command of any of them."""
    folder.mkdir()
    if tool == "streams":
        return in_java("streams", "StreamsCopy", folder, *STREAMS)
    if tool == "flink":
        return in_java("flink", "FlinkCopy", folder)
    return in_python(tool, folder)
