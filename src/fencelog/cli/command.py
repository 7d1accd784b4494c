"""What all commands have in common: their arguments are text, and text is UTF-8."""

from typing import Any

import typer
from typer.core import TyperCommand

from fencelog.cli.output import ExitStatus, fail


class FileName(str):
    """The name of a file, whose bytes may be any."""

    __slots__ = ()


class Command(TyperCommand):
    """A command that runs only if its arguments can be encoded.

    Python keeps bytes that it cannot decode as surrogates. They end in an exception wherever the
    text is encoded later: in a request, a lookup of a host, a record.
    """

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's or click's
        """Run it. Names of files and ``Path`` are passed as they are."""
        for parameter in self.params:
            given = ctx.params.get(parameter.name)
            for value in given if isinstance(given, list | tuple) else (given,):
                if isinstance(value, str) and not isinstance(value, FileName):
                    _check(value, parameter)
        return super().invoke(ctx)


def use_command(app: typer.Typer) -> None:
    """Make every command of the application a ``Command``."""
    for command in app.registered_commands:
        if command.cls is TyperCommand:
            command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_command(group.typer_instance)


def is_utf8(text: str) -> bool:
    """Whether an argument was UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(value: str, parameter: Any) -> None:  # noqa: ANN401 - typer's or click's
    if is_utf8(value):
        return
    is_option = parameter.opts[0].startswith("-")
    name = " / ".join(parameter.opts) if is_option else parameter.metavar or parameter.name
    shown = value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    fail(
        ExitStatus.USAGE,
        f"{name}: {shown} is not UTF-8",
        "write it in UTF-8; only names of files may have other bytes",
    )
