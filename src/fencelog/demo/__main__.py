"""``python -m fencelog.demo [--quick] [--output DIR]``."""

import sys

from fencelog.demo.run import main

if __name__ == "__main__":
    sys.exit(main())
