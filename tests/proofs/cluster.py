"""``./dev prove cluster --minutes N``: workloads against three brokers and three etcd members.

Each broker and each member has a network namespace of its own. Chapter after chapter they are cut
off from each other, killed, paused, stopped, and their disks filled; everything is healed, the log
must come to rest, and the history is checked while the next chapter is played.

It needs root, ``ip``, ``nft`` and etcd. Exit status 0: no anomaly; 77: skipped, something is
missing. A run of 20 minutes writes the dated report in ``docs/internals/proofs``.
"""

import os
import sys

from tests.clients.install import NotInstalled, debian
from tests.proofs import _cluster_run
from tests.support.network import apart, missing

SKIPPED = 77
"""What a test program returns that could not be run; automake's convention."""


def main(argv: list[str]) -> int:
    """Run what is asked for, in namespaces of its own; returns the exit status."""
    wanted = _cluster_run.arguments(argv)
    try:
        debian("etcd", "etcd-server")
    except NotInstalled as error:
        return _skip(f"etcd is not installed: {error}")
    if wanted.processes_only:
        return _cluster_run.main(argv)
    if (lacking := missing()) is None:
        command = apart("tests.proofs._cluster_run", argv)
        os.execvp(command[0], command)
    return _skip(lacking)


def _skip(reason: str) -> int:
    print(f"cluster: skipped: {reason}", file=sys.stderr)
    return SKIPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
