"""``fencelog serve`` and ``fencelog dev``: run a broker until SIGTERM or Ctrl-C."""

import asyncio
import logging
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fencelog.broker.config import BrokerConfig, Flags, Resolved
from fencelog.cli.collector import Collector
from fencelog.cli.command import FileName
from fencelog.cli.freed_memory import keep_freed_memory
from fencelog.cli.lives import Ready, serve_alone, serve_in_etcd
from fencelog.cli.log_output import LogOutput
from fencelog.cli.output import discard
from fencelog.cli.signals import STOPS, handle_signals, ignore_signals
from fencelog.errors import FencelogError, error_text
from fencelog.settings.given import ConfigError
from fencelog.settings.kinds import Whole
from fencelog.version import __version__

if TYPE_CHECKING:
    from fencelog.node import Node

DURABILITY = "fsync; os in a cluster"
DURABILITY_HELP = "What an acknowledged record survives. fsync: a power cut; os: kill -9."
BROKERS = Whole(1, 30)
Serving = Callable[
    [BrokerConfig, asyncio.Event, Ready], Coroutine[None, None, BaseException | None]
]
"""Runs what there is to run until the event; returns the failure that has ended it before."""
ConfigOption = Annotated[
    FileName | None,
    typer.Option(
        metavar="FILE", parser=FileName, help="Settings file: TOML, or Kafka's server.properties."
    ),
]


def serve(
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="The data directory; created if missing.")
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on; port 0 is a free port.",
            show_default="127.0.0.1:9092",
        ),
    ] = None,
    durability: Annotated[
        str | None, typer.Option(metavar="fsync|os", help=DURABILITY_HELP, show_default=DURABILITY)
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            metavar="sqlite|etcd://HOST:PORT,…/NAME",
            help="Where topics and leaders are kept; etcd: by all brokers of a cluster.",
            show_default="sqlite",
        ),
    ] = None,
    node_id: Annotated[
        int | None,
        typer.Option(metavar="N", help="The broker's number in its cluster.", show_default="1"),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Run a broker on a data directory.

    SIGTERM or Ctrl-C stops it cleanly; SIGQUIT logs what it is doing. kill -9 at any moment loses
    no acknowledged record.
    """
    flags = Flags(
        data_dir=str(data_dir.resolve()),
        listen=listen,
        durability=durability,
        metadata=metadata,
        node_id=None if node_id is None else str(node_id),
        config=config,
    )
    _run(flags.resolve, _serve_member_or_alone, stops=STOPS)


def dev(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on; further brokers take the ports after it.",
        ),
    ] = "127.0.0.1:0",
    durability: Annotated[str, typer.Option(metavar="fsync|os", help=DURABILITY_HELP)] = "os",
    brokers: Annotated[
        str, typer.Option(metavar="N", help="How many brokers: a cluster in one process.")
    ] = "1",
    config: ConfigOption = None,
) -> None:
    """Run a broker in a temporary directory on a free port. The directory is deleted at the end.

    The address, or those of all brokers, is printed on stdout, for scripts.
    """
    try:
        count = BROKERS.parse(brokers)
    except ValueError:
        typer.echo(f"fencelog: --brokers={brokers!r}: expected {BROKERS.expected()}", err=True)
        raise typer.Exit(2) from None
    serving = _serve_one if count == 1 else partial(_serve_several, count)
    with tempfile.TemporaryDirectory(prefix="fencelog-dev-") as directory:
        flags = Flags(
            data_dir=directory,
            listen=listen,
            durability=durability,
            config=config,
        )
        # With its terminal gone, nobody needs it: SIGHUP stops it and removes the directory.
        _run(flags.resolve, serving, stops=(*STOPS, signal.SIGHUP))


async def _serve_one(
    config: BrokerConfig, stop: asyncio.Event, ready: Ready
) -> BaseException | None:
    """Run a broker and print its address."""

    def announce(node: "Node") -> None:
        ready(node)
        host, port = node.address
        _print_addresses([f"{host}:{port}"])

    return await _serve_member_or_alone(config, stop, announce)


async def _serve_several(
    brokers: int, config: BrokerConfig, stop: asyncio.Event, ready: Ready
) -> BaseException | None:
    """Run a cluster and print its addresses."""
    from fencelog.cli.dev_cluster import serve_brokers

    if config.cluster is not None:
        raise FencelogError("with --brokers, leave metadata out of the settings: it is here")

    return await serve_brokers(config, brokers, stop, ready, _print_addresses)


async def _serve_member_or_alone(
    config: BrokerConfig, stop: asyncio.Event, ready: Ready
) -> BaseException | None:
    serving = serve_alone if config.cluster is None else serve_in_etcd
    return await serving(config, stop, ready)


def _print_addresses(addresses: Sequence[str]) -> None:
    try:
        print(",".join(addresses), flush=True)  # noqa: T201
    except BrokenPipeError:
        discard(sys.stdout)


def _run(
    resolve: Callable[[], Resolved], serving: Serving, *, stops: tuple[signal.Signals, ...]
) -> None:
    output = LogOutput.install()
    try:
        raise typer.Exit(_run_logged(resolve, serving, output, stops))
    finally:
        output.close()


def _run_logged(
    resolve: Callable[[], Resolved],
    serving: Serving,
    output: LogOutput,
    stops: tuple[signal.Signals, ...],
) -> int:
    """Run with this log; returns the exit status."""
    try:
        config, notices = resolve()
    except ConfigError as error:
        output.line(f"fencelog: {error}")
        return 2
    for notice in notices:
        logging.getLogger(__name__).warning("%s", notice)
    config = _within_file_limit(config)
    keep_freed_memory()
    try:
        return _run_loop(_serve(config, serving, output, stops))
    except (FencelogError, OSError) as error:
        output.line(f"fencelog: cannot serve {config.data_dir}: {error_text(error)}")
        return 1


def _within_file_limit(config: BrokerConfig) -> BrokerConfig:
    """Raise the limit of open files, and reserve a quarter of them for partitions.

    Every partition that is written to has an open file: without one, its writes wait.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems have a lower limit than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    room = 3 * soft // 4
    if soft == resource.RLIM_INFINITY or config.connections_max <= room:
        return config
    logging.getLogger(__name__).warning(
        "max.connections is %d instead of %d: the process may open %d files (ulimit -n), and a "
        "quarter of them is reserved for partitions",
        room,
        config.connections_max,
        soft,
    )
    return replace(config, connections_max=room)


def _run_loop(main: Coroutine[None, None, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _serve(
    config: BrokerConfig,
    serving: Serving,
    output: LogOutput,
    stops: tuple[signal.Signals, ...],
) -> int:
    """Serve until a signal or a failure; returns the exit status."""
    stop = asyncio.Event()
    handle_signals(stop.set, output, stops=stops)
    collector = Collector().start()

    def ready(node: "Node") -> None:
        collector.serve()
        host, port = node.address
        output.line(
            f"fencelog {__version__} listening on {host}:{port}, data in "
            f"{node.config.data_dir}, durability {config.durability}"
        )

    try:
        failure = await serving(config, stop, ready)
    finally:
        ignore_signals()
    if failure is not None:
        logging.getLogger(__name__).error(
            "the broker stops: a background task has failed", exc_info=failure
        )
        return 1
    return 0
