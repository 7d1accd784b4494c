"""Runs cells in a Jupyter kernel, as a notebook does, and prints what each of them shows as JSON.

Arguments: the folder of Jupyter's packages, and a JSON list of cells. The kernel's own packages are
ours, so Jupyter's come behind them on the path.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.waiting import wait_until

END_S = 240.0
KERNEL = (
    "import sys; sys.path.append(sys.argv.pop(1));"
    "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"
)


def main(packages: str, cells: str) -> None:
    """Start a kernel, run the cells, and end it."""
    sys.path.append(packages)
    from jupyter_client import BlockingKernelClient
    from jupyter_client.connect import write_connection_file

    with TemporaryDirectory() as folder:
        file, _ = write_connection_file(str(Path(folder) / "kernel.json"), ip="127.0.0.1")
        command = [sys.executable, "-c", KERNEL, packages, "-f", file]
        kernel = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        client = BlockingKernelClient(connection_file=file)
        try:
            client.load_connection_file()
            client.start_channels()
            wait_until(lambda: is_ready(client, kernel), deadline_s=END_S, what="the kernel")
            print(json.dumps([shown(client, cell) for cell in json.loads(cells)]))
            client.shutdown()
            kernel.wait(END_S)
        finally:
            client.stop_channels()
            kernel.kill()
            kernel.wait()


def is_ready(client: Any, kernel: "subprocess.Popen[bytes]") -> bool:
    """Whether it answers; the client takes a kernel that still starts for a dead one."""
    assert kernel.poll() is None, "the kernel has ended"
    try:
        client.wait_for_ready(timeout=END_S)
    except RuntimeError:
        return False
    return True


def shown(client: Any, cell: str) -> dict[str, str]:
    """What a cell printed, and the name and text of the error that it ended with."""
    result = {"text": "", "error": ""}

    def add(message: dict[str, Any]) -> None:
        content = message["content"]
        match message["header"]["msg_type"]:
            case "stream" if content["name"] == "stdout":
                result["text"] += content["text"]
            case "execute_result":
                result["text"] += content["data"]["text/plain"]
            case "error":
                result["error"] = f"{content['ename']}: {content['evalue']}"

    client.execute_interactive(cell, timeout=END_S, output_hook=add)
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
