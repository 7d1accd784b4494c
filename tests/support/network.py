"""Hosts of their own for brokers and etcd: network namespaces on a bridge, and small disks.

All of it belongs to namespaces of one process (``apart``): its network, mounts and
processes. When that process ends, however it ends, the kernel kills what it started and takes away
interfaces, rules and mounts. The machine's own network is not touched, and two runs cannot meet.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.closing import Closing
from tests.support.etcd import Host
from tests.support.waiting import wait_until

TOOLS = ("ip", "tc", "nft", "unshare", "nsenter", "mount", "umount")
APART = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
BRIDGE = "bridge0"
HUB = "10.0.0.254/24"
"""The clients' address; it is on the bridge."""
RULES = """\
table bridge cuts {
  set cut { type ifname . ifname; }
  chain forward {
    type filter hook forward priority 0
    iifname . oifname @cut counter drop
  }
}
"""
NARROW = ("root", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "1s")
"""A link on which what is sent at once waits for up to a second, and is lost beyond that."""
PROBE = f"""\
ip link add bridge0 type bridge && ip link add here type veth peer name there && nft -f - &&
tc qdisc add dev here {" ".join(NARROW)} && mount -t tmpfs -o size=1m disk /mnt
"""


def missing() -> str | None:
    """What this machine lacks for namespaces and cuts; None if it has all of it."""
    lacks = [each for each in TOOLS if shutil.which(each) is None]
    if lacks:
        return f"not found: {', '.join(lacks)} (Debian: iproute2, nftables, util-linux)"
    if os.geteuid():
        return "namespaces need root"
    tried = subprocess.run(
        [*APART, "sh", "-c", PROBE], input=RULES, capture_output=True, text=True, check=False
    )
    return f"namespaces are not to be had: {tried.stderr.strip()}" if tried.returncode else None


def apart(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a module in namespaces of its own, which end with it."""
    return [*APART, sys.executable, "-m", module, *arguments]


def between(some: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    """Both ways between each of some and each of the others."""
    pairs = [(one, other) for one in some for other in others if one != other]
    return pairs + [(other, one) for one, other in pairs]


class Frames(NamedTuple):
    """What became of frames between hosts."""

    dropped: int
    delayed: int


class Network(Closing):
    """Hosts on a bridge, in the namespaces of this process; cuts between any two, each way."""

    def __init__(self, names: Iterable[str]) -> None:
        """Make a host for each name."""
        self._holders: list[subprocess.Popen[bytes]] = []
        self.hosts: dict[str, Host] = {}
        self._narrowed: list[tuple[Sequence[str], str]] = []
        self.delayed = 0
        """How many frames had to wait on a narrow link so far."""
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "address", "add", HUB, "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        _run("nft", "-f", "-", said=RULES)
        for number, name in enumerate(names, 1):
            self.hosts[name] = self._host(name, f"10.0.0.{number}")

    def _host(self, name: str, address: str) -> Host:
        # A namespace lasts as long as a process in it.
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._holders.append(holder)
        theirs = f"/proc/{holder.pid}/ns/net"
        ours = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(theirs) != ours, what=f"{name} has a network of its own")
        within = ("nsenter", f"--net={theirs}")
        _run("ip", "link", "add", name, "type", "veth", "peer", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", name, "master", BRIDGE, "up")
        _run(*within, "ip", "link", "set", "lo", "up")
        _run(*within, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        _run(*within, "ip", "link", "set", "eth0", "up")
        return Host(address, within)

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        """Drop what one host sends to another; the other way stays open."""
        pairs = ", ".join(f'"{source}" . "{target}"' for source, target in ways)
        _run("nft", "-f", "-", said=f"add element bridge cuts cut {{ {pairs} }}\n")

    def narrow(self, name: str) -> None:
        """Delay what a host sends and what it is sent: more, the more there is of it."""
        for link in ((), name), (self.hosts[name].within, "eth0"):
            self._narrowed.append(link)
            _run(*link[0], "tc", "qdisc", "add", "dev", link[1], *NARROW)

    def heal(self) -> None:
        """Drop and delay nothing any more."""
        _run("nft", "flush", "set", "bridge", "cuts", "cut")
        while self._narrowed:
            within, device = self._narrowed.pop()
            shown = _run(*within, "tc", "-json", "-statistics", "qdisc", "show", "dev", device)
            self.delayed += json.loads(shown)[0]["overlimits"]
            _run(*within, "tc", "qdisc", "delete", "dev", device, "root")

    @property
    def dropped(self) -> int:
        """How many frames were dropped so far."""
        listed = json.loads(_run("nft", "--json", "list", "chain", "bridge", "cuts", "forward"))
        rule = next(each["rule"] for each in listed["nftables"] if "rule" in each)
        return sum(each["counter"]["packets"] for each in rule["expr"] if "counter" in each)

    def close(self) -> None:
        """Take everything away."""
        for each in self._holders:
            each.kill()
            each.wait()
        for name in self.hosts:
            # With its namespace, its end there, and so this one, may be gone already.
            with suppress(OSError):
                _run("ip", "link", "delete", name)
        _run("ip", "link", "delete", BRIDGE)
        _run("nft", "delete", "table", "bridge", "cuts")


class SmallDisk(Closing):
    """A file system in memory with a limit, mounted on ``folder``; leaving unmounts it."""

    fault = "disk full (ENOSPC)"

    def __init__(self, folder: Path, mebibytes: int) -> None:
        """Mount it; the folder is made."""
        folder.mkdir()
        self._mounted = folder
        self._mebibytes = mebibytes
        self.data_dir = folder / "data"
        _run("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "disk", str(folder))

    def fill(self, pid: int) -> None:
        """Make it as small as what is in it."""
        while True:
            size = os.statvfs(self._mounted)
            used = max(size.f_blocks - size.f_bfree, 1) * size.f_frsize
            # Refused where files have grown meanwhile.
            with suppress(OSError):
                self._resize(f"{used}")
                return

    def free(self, pid: int) -> None:
        """There is room again."""
        self._resize(f"{self._mebibytes}m")

    def close(self) -> None:
        """Unmount; also where a dying process still holds a file."""
        _run("umount", "-l", str(self._mounted))

    def _resize(self, size: str) -> None:
        _run("mount", "-o", f"remount,size={size}", str(self._mounted))


def _run(*command: str, said: str = "") -> str:
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"`{' '.join(command)}`: {done.stderr.strip()}")
    return done.stdout
