"""Calls a command without the typer parser, which takes longer to load than a broker to start.

Only simple arguments are handled here: known options, each once and with a value in UTF-8. All
others (help, wrong or missing options) go to the parser.
"""

import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import get_args

import typer

from fencelog.cli.command import is_utf8

Verb = Callable[..., None]


def plain_options(verb: Verb, arguments: Sequence[str]) -> dict[str, object] | None:
    """The command's keyword arguments, or None if the parser is needed."""
    known = {
        f"--{name.replace('_', '-')}": each for name, each in signature(verb).parameters.items()
    }
    found: dict[str, object] = {}
    rest = iter(arguments)
    for argument in rest:
        option, given, value = argument.partition("=")
        if not given:
            value = next(rest, "")
        parameter = known.get(option)
        if parameter is None or parameter.name in found or not value or value.startswith("-"):
            return None
        if not is_utf8(value):
            return None
        is_path = Path in get_args(parameter.annotation)
        found[parameter.name] = Path(value) if is_path else value
    required = {each.name for each in known.values() if each.default is Parameter.empty}
    return found if required <= found.keys() else None


def run(verb: Verb, options: dict[str, object]) -> None:
    """Call the command and exit with its status."""
    try:
        verb(**options)
    except typer.Exit as ending:
        sys.exit(ending.exit_code)
