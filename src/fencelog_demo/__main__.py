"""``python -m fencelog_demo [--quick] [--output DIR]``."""

import sys

from fencelog_demo.run import main

if __name__ == "__main__":
    sys.exit(main())
