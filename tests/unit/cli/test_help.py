"""The help of the commands, as a terminal shows it."""

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fencelog.cli.main import build


@pytest.mark.parametrize(
    "command",
    [["serve"], ["partition", "elect"], ["own", "claim"], ["stream", "read"], ["stream", "cut"]],
)
def test_the_terminal_breaks_the_lines_of_a_help_and_the_source_does_not(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = get_command(build(command[0]))
    for name in command:
        found = getattr(found, "commands")[name]  # noqa: B009 - a group's
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(build(command[0]), [*command, "--help"]).output
    text = [line.strip() for line in shown.split("╭─")[0].splitlines()]
    _, *paragraphs = (found.help or "").split("\n\n")
    assert paragraphs
    for paragraph in paragraphs:
        # Greedily: each line would not have had room for the next one's first word.
        line = ""
        for word in paragraph.split():
            if len(f"{line} {word}") > 78:
                assert line in text
                line = word
            else:
                line = f"{line} {word}".strip()
        assert line in text
