"""``python -m fencelog_sim [SEED] [--seeds A:B] [--workload NAME] [--minutes N]``."""

import os
import sys


def _fix_hashes() -> None:
    """Start anew with fixed hashes of strings: a client library may iterate over sets of them."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        arguments = [sys.executable, "-m", "fencelog_sim", *sys.argv[1:]]
        os.execve(sys.executable, arguments, environment)  # noqa: S606 - itself


if __name__ == "__main__":
    _fix_hashes()
    from fencelog_sim.main import main

    sys.exit(main())
