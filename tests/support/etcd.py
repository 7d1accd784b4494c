"""A real etcd on loopback ports: one member or three, which a test may kill, pause and start again.

Commands that only an operator gives (compaction, users) go to its HTTP gateway.
"""

import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fencelog.settings.metadata_url import EtcdUrl
from tests.clients.install import NotInstalled, debian
from tests.support.waiting import wait_until

START_S = 20.0
STOP_S = 10.0
# A leader is elected in a second, not in three; the least time of a lease is a second then.
PACE = ("--heartbeat-interval=50", "--election-timeout=500")


class Host(NamedTuple):
    """Where a process runs: an address of its own, and the command that starts others there."""

    address: str
    within: tuple[str, ...] = ()


HERE = Host("127.0.0.1")


class Certificates(NamedTuple):
    """PEM files: an authority, and a key and certificate of 127.0.0.1 and of a client."""

    ca: Path
    cert: Path
    key: Path


class EtcdMember:
    """One member's process; start, kill, pause, resume and start it again."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        name: str,
        tls: Certificates | None,
        options: list[str],
        host: Host,
    ) -> None:
        """Describe it; nothing runs yet."""
        self.name = name
        self._address = host.address
        self.client_port, self.peer_port = free_ports(2)
        self._tls = tls
        self._log = folder / f"{name}.log"
        self._base = f"{'http' if tls is None else 'https'}://{self.endpoint}"
        self._line = [
            *host.within,
            str(program),
            *PACE,
            f"--name={name}",
            f"--data-dir={folder / name}",
            f"--listen-client-urls={self._base}",
            f"--advertise-client-urls={self._base}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            *options,
        ]
        if tls is not None:
            self._line += [
                f"--cert-file={tls.cert}",
                f"--key-file={tls.key}",
                f"--trusted-ca-file={tls.ca}",
                "--client-cert-auth",
            ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """``host:port`` for clients."""
        return f"{self._address}:{self.client_port}"

    @property
    def peer_url(self) -> str:
        """Where the other members reach it."""
        return f"http://{self._address}:{self.peer_port}"

    def start(self, cluster: Sequence[str] = ()) -> None:
        """Start the process; ``cluster``: all members' names and URLs, the first time."""
        assert self._process is None
        if cluster:
            self._line.append(f"--initial-cluster={','.join(cluster)}")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._line, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait(self) -> None:
        """Return when it serves, which needs most of the members."""
        wait_until(self._is_healthy, deadline_s=START_S, what=f"etcd's {self.name} serves")

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_S)

    def pause(self) -> None:
        """Stop the process with SIGSTOP: its connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        wait_until(
            lambda: all(_state(each) == "T" for each in tasks.iterdir()), what="each thread stops"
        )

    def resume(self) -> None:
        """Let a paused process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def leads(self) -> bool:
        """Whether the others follow this member; False where it does not say, or knows none."""
        try:
            status = command(self._base, "maintenance/status", self._context())
        except OSError:
            return False
        return bool(status.get("leader") == status["header"]["member_id"])

    def compact(self) -> None:
        """Let etcd forget its history."""
        compact(self._base, self._context())

    def _command(self, path: str, **fields: object) -> None:
        command(self._base, path, self._context(), **fields)

    def enable_users(self, name: str, password: str, prefix: str) -> None:
        """Enable authentication, with a user who may read and write one prefix."""
        begin, end = (
            base64.b64encode(each.encode()).decode() for each in (prefix, prefix[:-1] + "0")
        )
        for user, word in (("root", "of-root"), (name, password)):
            self._command("auth/user/add", name=user, password=word)
            self._command("auth/role/add", name=user)
            self._command("auth/user/grant", user=user, role=user)
        allowed = {"permType": "READWRITE", "key": begin, "range_end": end}
        self._command("auth/role/grant", name=name, perm=allowed)
        self._command("auth/enable")

    def _context(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        context = ssl.create_default_context(cafile=str(self._tls.ca))
        context.load_cert_chain(self._tls.cert, self._tls.key)
        return context

    def _is_healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        url = f"{self._base}/health"
        try:
            with urllib.request.urlopen(url, timeout=1, context=self._context()) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, urllib.error.URLError):
            return False


def command(
    base: str, path: str, context: ssl.SSLContext | None = None, **fields: object
) -> dict[str, Any]:
    """Give an operator's command to a member's gateway: a path below ``/v3`` and its fields."""
    request = urllib.request.Request(f"{base}/v3/{path}", json.dumps(fields).encode())
    with urllib.request.urlopen(request, timeout=STOP_S, context=context) as answer:
        return dict(json.load(answer))


def compact(base: str, context: ssl.SSLContext | None = None) -> None:
    """Let an etcd forget its history up to now."""
    key = base64.b64encode(b"any").decode()
    revision = command(base, "kv/range", context, key=key)["header"]["revision"]
    command(base, "kv/compaction", context, revision=revision, physical=True)


def _state(task: Path) -> str:
    """A thread's state, of one letter."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Etcd(NamedTuple):
    """All members of a running etcd."""

    members: tuple[EtcdMember, ...]

    def url(self, name: str) -> EtcdUrl:
        """What a cluster of this name is to be given."""
        return EtcdUrl(tuple(each.endpoint for each in self.members), name)


@contextmanager
def running_etcd(
    members: int = 1,
    *,
    tls: Certificates | None = None,
    options: Sequence[str] = (),
    hosts: Sequence[Host] = (),
) -> Iterator[Etcd]:
    """Run an etcd until the block ends; its files go with it. Raises NotInstalled.

    ``hosts``: one for each member, where they are not to be together.
    """
    program = debian("etcd", "etcd-server")
    with ExitStack() as stack:
        # Not below pytest's folders, which keep the last three runs.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencelog-etcd-")))
        etcd = Etcd(
            tuple(
                EtcdMember(program, folder, f"m{number}", tls, list(options), host)
                for number, host in enumerate(hosts or [HERE] * members)
            )
        )
        cluster = [f"{each.name}={each.peer_url}" for each in etcd.members]
        for each in etcd.members:
            stack.callback(each.kill)
            each.start(cluster)
        for each in etcd.members:
            each.wait()
        yield etcd


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def certificates(folder: Path) -> Certificates:
    """Make an authority and what it has signed. Raises NotInstalled without openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise NotInstalled("there is no openssl here: apt-get install openssl")
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    ca_key, request, names = folder / "ca.key", folder / "request", folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    sign = ["-CA", made.ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2"]
    for command in (
        ["req", "-x509", *curve, "-subj", "/CN=authority", "-keyout", ca_key, "-out", made.ca],
        ["req", *curve, "-subj", "/CN=member", "-keyout", made.key, "-out", request],
        ["x509", "-req", "-in", request, *sign, "-extfile", names, "-out", made.cert],
    ):
        subprocess.run(
            [openssl, *command], check=True, capture_output=True, env={**os.environ, "LC_ALL": "C"}
        )
    return made
