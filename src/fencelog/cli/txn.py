"""``fencelog txn``: what the transaction coordinators know."""

from typing import Annotated

import typer

from fencelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    FormatOption,
    PropertyOption,
    connection,
)
from fencelog.cli.output import Format, Row, default_format, reported_errors, show_json, show_rows

app = typer.Typer(name="txn", help="List and describe transactions.", no_args_is_help=True)


@app.command("list")
def list_transactions(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """List the transactional ids that are known, with their states."""
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            listed = client.list_transactions()
        rows: list[Row] = [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "state": each.state,
            }
            for each in listed
        ]
        show_rows(rows, ("transactional_id", "producer_id", "state"), form)


@app.command()
def describe(
    ids: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID…", help="One id or more.")],
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Show a transaction's producer, state, timeout and partitions."""
    with reported_errors():
        rows: list[Row] = []
        with connection(bootstrap, properties).open() as client:
            for each in ids:
                described = client.describe_transaction(each)
                open_since = described.start_time_ms
                rows.append(
                    {
                        "transactional_id": described.transactional_id,
                        "producer_id": described.producer_id,
                        "producer_epoch": described.producer_epoch,
                        "state": described.state,
                        "timeout_ms": described.timeout_ms,
                        "start_time_ms": None if open_since < 0 else open_since,
                        "partitions": [str(place) for place in described.partitions],
                    }
                )
        if (form or default_format()) is Format.JSON:
            show_json(rows)
            return
        for row in rows:
            fields: list[Row] = [{"field": key, "value": value} for key, value in row.items()]
            show_rows(fields, ("field", "value"), Format.TABLE)
