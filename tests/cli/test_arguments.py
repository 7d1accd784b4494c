"""Arguments that no command can use: each is a usage error that names it, and never a traceback."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fencelog.cli.main import build
from tests.support.cli import Cli

NOBODY = "127.0.0.1:1"
COMMAND = get_command(build())
VALUES = {int: "1", str: "a", Path: "/nowhere"}


@pytest.fixture
def cli() -> Cli:
    """The command line; there is no broker at its address."""
    return Cli(NOBODY)


class Parameter(NamedTuple):
    """An option or argument of a command of the tree."""

    path: tuple[str, ...]
    name: str
    kind: type
    flag: str | None
    """None for an argument."""
    required: tuple[str, ...]
    """What else the command cannot do without."""

    def given(self, value: str) -> list[str]:
        """Return a command line with this value."""
        if self.flag is not None:
            return [*self.path, *self.required, f"{self.flag}={value}"]
        escape = ["--"] if value.startswith("-") else []
        return [*self.path, *self.required, *escape, value]


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for each in get_args(annotation):
        yield from _kinds(each)


def _kind(command: Any, name: str) -> type | None:
    signature = inspect.signature(command.callback, eval_str=True)
    found = (
        set(_kinds(signature.parameters[name].annotation)) if name in signature.parameters else ()
    )
    return next((each for each in (int, str, Path) if each in found), None)


def _flag(parameter: Any) -> str | None:
    return max(parameter.opts, key=len) if parameter.opts[0].startswith("-") else None


def _parameters() -> Iterator[Parameter]:
    for path, command in _commands(COMMAND):
        kinds = {each.name: _kind(command, each.name) for each in command.params}
        for each in command.params:
            kind = kinds[each.name]
            if kind is None:
                continue
            others: list[str] = []
            before = True
            for other in command.params:
                flag = _flag(other)
                if other is each:
                    before = False
                elif other.required and (flag is not None or before or _flag(each) is not None):
                    value = VALUES[kinds[other.name] or str]
                    others += [value] if flag is None else [flag, value]
            yield Parameter(
                path=path,
                name=each.name,
                kind=kind,
                flag=_flag(each),
                required=tuple(others),
            )


PARAMETERS = list(_parameters())


def named(parameter: Parameter) -> str:
    return " ".join((*parameter.path, parameter.name))


def run(*arguments: str) -> Any:
    """Run the command line in this process, without a broker."""
    return CliRunner(env=Cli(NOBODY).environment).invoke(build(arguments[0]), arguments)


@pytest.mark.parametrize(
    "parameter",
    # What serve is given is checked with its other settings.
    [each for each in PARAMETERS if each.kind is int and each.name != "node_id"],
    ids=named,
)
@pytest.mark.parametrize("number", [1 << 63, -1 << 63, 10**4000])
def test_every_number_has_a_range(parameter: Parameter, number: int) -> None:
    done = run(*parameter.given(str(number)))
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert "Invalid value for" in done.stderr


@pytest.mark.parametrize("number", ["9223372036854775808", "9" * 5000])
@pytest.mark.parametrize(
    "command",
    [
        "topic consume t -o {}",
        "topic consume t -o -{}",
        "topic consume t -o @{}",
        "topic consume t -o @-{}d",
        "topic delete-records t -o {}",
        "group seek g -t t -o {}",
        "partition elect t/{}",
        "stream create s --rate {}/s",
        "stream create s --rate {}MB/s",
        'stream group reset g --to {{"segments":{{"0":{}}}}}',
        'stream group reset g --to {{"segments":{{"{}":0}}}}',
        "topic list -X request.timeout.ms={}",
    ],
)
def test_a_number_in_a_text_has_a_range(command: str, number: str) -> None:
    done = run(*command.format(number).split())
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert "expected" in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("time", ["@0001-01-01", "@1969-12-31T23:59:59", "@-30000d"])
def test_a_time_before_1970_is_refused(time: str) -> None:
    done = run("topic", "consume", "t", "-o", time)
    assert done.exit_code == 2
    assert f"error: -o {time}: expected a time from 1970 on" in done.stderr
