"""``python -m fencelog`` is the ``fencelog`` command."""

from fencelog.cli.main import main

if __name__ == "__main__":
    main()
