"""The short way to a verb: only what needs no explaining goes it."""

from pathlib import Path

import pytest
import typer

from fencelog.cli.direct import plain_options, run
from fencelog.cli.serve import dev, serve


def test_known_options_with_values_become_arguments() -> None:
    arguments = ["--data-dir", "data", "--listen=127.0.0.1:0", "--durability", "os"]
    assert plain_options(serve, arguments) == {
        "data_dir": Path("data"),
        "listen": "127.0.0.1:0",
        "durability": "os",
    }


def test_a_verb_without_required_options_needs_none() -> None:
    assert plain_options(dev, []) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        [],
        ["--listen", "127.0.0.1:0"],
        ["--data-dir"],
        ["--data-dir", ""],
        ["--data-dir", "--listen"],
        ["--data-dir", "a", "--data-dir", "b"],
        ["--data-dir", "a", "more"],
        ["--data-dir", "\udcff"],
        ["--data-dir", "a", "--lissten", "127.0.0.1:0"],
    ],
)
def test_what_must_be_explained_is_left_to_the_parser(arguments: list[str]) -> None:
    assert plain_options(serve, arguments) is None


def test_the_verbs_status_is_the_processs() -> None:
    def refuses() -> None:
        raise typer.Exit(2)

    with pytest.raises(SystemExit) as ended:
        run(refuses, {})
    assert ended.value.code == 2
