"""What the client is to its process: forks, threads, the end of the interpreter, the code cache."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fencelog
from fencelog.client.blocking import Client
from fencelog.client.cluster import ClusterOptions, parse_address
from fencelog.errors import FencelogError
from tests.unit.client.fake_broker import FakeBroker

PACKAGE = Path(fencelog.__file__).parent
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def status_of_child(run: Callable[[], int]) -> int:
    """Fork, and return how the child ends: with what ``run`` returns, or 1 if it raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = run()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@FORKS
def test_a_forked_child_gets_a_connection_of_its_own_and_the_parents_still_works() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        assert client.partitions(["t"]) == {"t": [0]}
        assert status_of_child(lambda: 0 if client.partitions(["t"]) == {"t": [0]} else 2) == 0
        assert client.partitions(["t"]) == {"t": [0]}


@FORKS
def test_a_writer_of_the_parent_is_refused_in_a_child() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        producer = client.producer(idempotent=False)

        def send() -> int:
            try:
                producer.send("t", b"v")
            except FencelogError as error:
                return 0 if "parent process" in str(error) else 2
            return 1

        assert status_of_child(send) == 0
        producer.close()


@FORKS
def test_a_writer_of_the_parent_is_not_closed_by_a_child_and_twice_by_nobody() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        producer = client.producer(idempotent=False)

        def close() -> int:
            signal.alarm(10)  # the loop of the parent's client does not run here
            producer.close()
            return 0

        assert status_of_child(close) == 0
        producer.send("t", b"v")
        producer.flush()
        producer.close()
        client.close()
        producer.close()
        assert len(broker.produced) == 1


def test_a_shared_client_is_one_per_process_and_address() -> None:
    with FakeBroker() as broker:
        first = Client.shared(broker.address)
        assert Client.shared(broker.address) is first
        assert Client.shared(broker.address, client_id="other") is not first
        first.close()
        assert Client.shared(broker.address) is not first


def test_a_closed_client_leaves_no_thread() -> None:
    with FakeBroker() as broker:
        before = set(threading.enumerate())
        with Client(broker.address) as client:
            client.topics()
        left = set(threading.enumerate()) - before
        assert [thread for thread in left if thread.name == "fencelog-client"] == []


def test_a_closed_client_says_that_it_is_closed() -> None:
    with FakeBroker() as broker:
        client = Client(broker.address)
        client.topics()
        client.close()
        client.close()
        with pytest.raises(FencelogError, match="closed; create a new one"):
            client.topics()


def test_a_client_that_was_not_closed_lets_the_interpreter_end_in_silence() -> None:
    script = (
        "import sys; from fencelog.client.blocking import Client;"
        "c = Client(sys.argv[1]); print(c.partitions(['t']))"
    )
    with FakeBroker() as broker:
        ended = subprocess.run(
            [sys.executable, "-X", "dev", "-c", script, broker.address],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "{'t': [0]}\n", "")


def test_a_pickled_client_connects_by_itself() -> None:
    with FakeBroker() as broker, Client(broker.address) as client:
        client.topics()
        with pickle.loads(pickle.dumps(client)) as copy:
            assert copy.partitions(["t"]) == {"t": [0]}


def test_the_facade_loads_neither_arrow_nor_the_compiler() -> None:
    script = (
        "import sys, fencelog.client.blocking;"
        "print([m for m in ('pyarrow', 'numba', 'numpy', 'kafka') if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("private_folder", [True, False])
def test_the_kernel_compiles_where_nothing_beside_it_can_be_written(
    tmp_path: Path, private_folder: bool
) -> None:
    shutil.copytree(
        PACKAGE, tmp_path / "fencelog", ignore=shutil.ignore_patterns("__pycache__", "demo")
    )
    (tmp_path / "fencelog/client/__pycache__").write_text("a file, so that no folder can be here")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    if not private_folder:
        # Another user's folder, or one that others can write to, is not trusted.
        (temporary / f"fencelog-numba-{os.getuid()}").mkdir()
        (temporary / f"fencelog-numba-{os.getuid()}").chmod(0o777)
    script = (
        "import numba, fencelog.client.kernel as k; assert k.__file__.startswith(__import__('sys')"
        ".argv[1]); print(numba.config.CACHE_DIR)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={
            "PYTHONPATH": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/dev/null",
            "XDG_CACHE_HOME": "/dev/null/cache",
            "TMPDIR": str(temporary),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    expected = f"{temporary}/fencelog-numba-{os.getuid()}\n" if private_folder else "\n"
    assert (ended.returncode, ended.stdout) == (0, expected), ended.stderr
    assert bool(list(temporary.rglob("*.nbi"))) == private_folder


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", ("localhost", 9092)),
        ("127.0.0.1:39", ("127.0.0.1", 39)),
        (" a.example:1 ", ("a.example", 1)),
        ("[::1]:5", ("::1", 5)),
        ("::1", ("::1", 9092)),
    ],
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["a:b", "a:0", "a:70000", ":9092", ",", "a..b:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|required"):
        ClusterOptions(bootstrap_servers=text)
