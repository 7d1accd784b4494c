"""``fencelog serve`` and ``fencelog dev``: run a broker until SIGTERM or Ctrl-C."""

import asyncio
import gc
import logging
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fencelog import __version__
from fencelog.broker.config import BrokerConfig, Flags, Resolved
from fencelog.errors import FencelogError, error_text
from fencelog.settings.given import ConfigError

GC_THRESHOLDS = (20_000, 20, 20)
"""A request that names thousands of things makes as many objects, and is no reason to look through
all that a broker of thousands of connections and partitions holds: that takes tens of milliseconds.
"""
DURABILITY_HELP = "What an acknowledged record survives: fsync a power cut, os a kill -9."
ConfigOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Settings: TOML, or Kafka's server.properties."),
]


def serve(
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Where everything is kept; made if missing.")
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on; port 0 takes a free one.",
            show_default="127.0.0.1:9092",
        ),
    ] = None,
    durability: Annotated[
        str | None, typer.Option(metavar="fsync|os", help=DURABILITY_HELP, show_default="fsync")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Run a broker on a data directory.

    SIGTERM or Ctrl-C stops it cleanly; a kill -9 at any moment loses nothing acknowledged.
    """
    flags = Flags(
        data_dir=str(data_dir.resolve()),
        listen=listen,
        durability=durability,
        config=config,
    )
    _run(flags.resolve)


def dev(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")
    ] = "127.0.0.1:0",
    durability: Annotated[str, typer.Option(metavar="fsync|os", help=DURABILITY_HELP)] = "os",
    config: ConfigOption = None,
) -> None:
    """Run a broker in a temporary directory on a free port; all is gone when it stops.

    The address is printed on stdout, for scripts.
    """
    with tempfile.TemporaryDirectory(prefix="fencelog-dev-") as directory:
        flags = Flags(
            data_dir=directory,
            listen=listen,
            durability=durability,
            config=config,
        )
        _run(flags.resolve, announce=lambda host, port: print(f"{host}:{port}", flush=True))  # noqa: T201


def _run(
    resolve: Callable[[], Resolved], announce: Callable[[str, int], None] | None = None
) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        config, notices = resolve()
    except ConfigError as error:
        sys.stderr.write(f"fencelog: {error}\n")
        raise typer.Exit(2) from error
    for notice in notices:
        logging.getLogger(__name__).warning("%s", notice)
    config = _within_file_limit(config)
    try:
        code = _run_loop(_serve(config, announce))
    except (FencelogError, OSError) as error:
        sys.stderr.write(f"fencelog: cannot serve {config.data_dir}: {error_text(error)}\n")
        raise typer.Exit(1) from error
    raise typer.Exit(code)


def _within_file_limit(config: BrokerConfig) -> BrokerConfig:
    """Open as many files as the system lets us, and keep a quarter of them from the connections.

    Every partition has a file: one that could not open its next would be out of service.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems have a lower limit than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    room = 3 * soft // 4
    if soft == resource.RLIM_INFINITY or config.connections_max <= room:
        return config
    logging.getLogger(__name__).warning(
        "%d connections at most, not max.connections=%d: a process may open %d files here "
        "(ulimit -n), and a quarter of them is kept for partitions",
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


async def _serve(config: BrokerConfig, announce: Callable[[str, int], None] | None) -> int:
    """Serve until told to stop; returns the exit status."""
    from fencelog.node import open_node

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_node(config) as node:
        # What is alive now lives as long as the broker: keep the collector from looking at it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        host, port = node.address
        sys.stderr.write(
            f"fencelog {__version__} listening on {host}:{port}, data in "
            f"{config.data_dir}, durability {config.durability}\n"
        )
        sys.stderr.flush()
        if announce is not None:
            announce(host, port)
        stopped = loop.create_task(stop.wait())
        failed = loop.create_task(node.wait_failed())
        await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        failed.cancel()
        failure = node.failure()
        if failure is not None:
            logging.getLogger(__name__).error("the broker cannot go on", exc_info=failure)
            return 1
    return 0
