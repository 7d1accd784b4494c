"""The ``fencelog`` command: the module of each command, imported only when it is used."""

import inspect
import sys
from importlib import import_module

import typer

from fencelog.cli.command import use_command
from fencelog.cli.direct import plain_options, run

NOUNS = {
    "topic": "fencelog.cli.topic",
    "stream": "fencelog.cli.stream",
    "group": "fencelog.cli.group",
    "txn": "fencelog.cli.txn",
    "own": "fencelog.cli.own",
    "cluster": "fencelog.cli.cluster",
    "partition": "fencelog.cli.partition",
}
VERBS = {
    "serve": "fencelog.cli.serve",
    "dev": "fencelog.cli.serve",
    "run": "fencelog.cli.run",
    "doctor": "fencelog.cli.doctor",
    "check": "fencelog.cli.check",
    "backup": "fencelog.cli.backup",
    "restore": "fencelog.cli.backup",
}
DIRECT = ("serve", "dev")
"""Commands for which start time matters: they skip the parser if they can."""
HELP = "An exactly-once event log with the Kafka protocol."


def show_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        from fencelog.version import __version__

        typer.echo(f"fencelog {__version__}")
        raise typer.Exit


def build(only: str | None = None) -> typer.Typer:
    """The application; with ``only``, just that command, so that no other module is imported."""
    app = typer.Typer(
        name="fencelog", help=HELP, no_args_is_help=True, pretty_exceptions_enable=False
    )

    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Show the version."
        ),
    ) -> None:
        """Handle the options before the command."""
        del version

    options.__doc__ = HELP
    for noun, module in NOUNS.items():
        if only in (None, noun):
            app.add_typer(import_module(module).app, name=noun)
    for verb, module in VERBS.items():
        if only in (None, verb):
            app.command(name=verb)(getattr(import_module(module), verb))
    _join_lines(app)
    use_command(app)
    return app


def _join_lines(app: typer.Typer) -> None:
    """Let the terminal break the lines of each command's help: the parser keeps the source's."""
    for command in app.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(part.replace("\n", " ") for part in text.split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _join_lines(group.typer_instance)


def main() -> None:
    """Run the command line."""
    first = sys.argv[1] if len(sys.argv) > 1 else None
    if first in DIRECT:
        verb = getattr(import_module(VERBS[first]), first)
        options = plain_options(verb, sys.argv[2:])
        if options is not None:
            run(verb, options)
            return
    known = first in NOUNS or first in VERBS
    build(first if known else None)(prog_name="fencelog")
