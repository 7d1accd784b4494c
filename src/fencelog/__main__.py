"""``python -m fencelog`` is the ``fencelog`` command."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are loaded ends it without a traceback."""
    try:
        from fencelog.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
