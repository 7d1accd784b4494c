"""``python -m fencelog.sim [SEED] [--seeds A:B] [--workload NAME] [--minutes N]``."""

import sys

from fencelog.sim.main import main

if __name__ == "__main__":
    sys.exit(main())
