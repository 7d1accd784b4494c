"""``fencelog cluster``: the brokers and their durability mode."""

import typer

from fencelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    FormatOption,
    PropertyOption,
    connection,
)
from fencelog.cli.output import (
    Format,
    Row,
    default_format,
    reported_errors,
    say,
    show_json,
    show_rows,
)

app = typer.Typer(name="cluster", help="Show the cluster.", no_args_is_help=True)


@app.callback()
def cluster() -> None:
    """Show the cluster."""


@app.command()
def info(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Show the cluster id, the brokers and their durability mode."""
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            described = client.cluster()
            brokers: list[Row] = []
            for broker in described.brokers:
                configs = client.broker_configs(broker.node_id)
                brokers.append(
                    {
                        "node_id": broker.node_id,
                        "address": f"{broker.host}:{broker.port}",
                        "controller": broker.node_id == described.controller_id,
                        "durability": configs.get("durability"),
                    }
                )
        if (form or default_format()) is Format.JSON:
            show_json(
                {
                    "cluster_id": described.cluster_id,
                    "controller_id": described.controller_id,
                    "brokers": brokers,
                }
            )
            return
        say(f"cluster {described.cluster_id}")
        show_rows(brokers, ("node_id", "address", "controller", "durability"), Format.TABLE)
