"""``python -m fencelog`` is the ``fencelog`` command."""

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are loaded ends it without a traceback."""
    _open_standard_streams()
    try:
        from fencelog.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed.

    Else the next file or socket would get its number, and what is printed, or what a child
    inherits, would go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: those below it are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - it stays


if __name__ == "__main__":
    main()
