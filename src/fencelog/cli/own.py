"""``fencelog own``: claim resources, run a command while they are owned; see and free them."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencelog.cli.command import Command
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
    UsageError,
    default_format,
    reported_errors,
    show_line,
    show_rows,
)
from fencelog.coordination.ownership.rules import GENERATION_MAX
from fencelog.wire.own import LEASE_MS_MAX, LEASE_MS_MIN

if TYPE_CHECKING:
    from fencelog.client.model import OwnershipDescription

app = typer.Typer(
    name="own",
    help="Claim resources, show who owns them, release them.",
    no_args_is_help=True,
)

LEASE_MS = 10_000
COLUMNS = ("group", "resource", "state", "generation", "epoch", "holder", "host", "waiting")
_COMMAND = "fencelog.command"

ResourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RESOURCE…",
        help="Any names; TOPIC/PARTITION is that partition.",
        show_default=False,
    ),
]
AnyResourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RESOURCE…]", help="Only these resources; default: all.", show_default=False
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option("-g", "--group", help="Who commits this group's offsets; default: who writes."),
]


class WithCommand(Command):
    """A verb with a command line after ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's or click's
        """Take the command from the arguments."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = None if at == len(args) else tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's or click's
        """Show the command in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND…]"]


@app.command(cls=WithCommand)
def claim(
    context: typer.Context,
    resources: ResourcesArgument,
    group: GroupOption = None,
    generation: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=GENERATION_MAX,
            help="The attempt: an owner with a lower or equal one is fenced, one with a higher one "
            "refuses it; 0 fences any. Default: one more than the last.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the resources are free, and fence nobody.")
    ] = False,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Also give out a transactional id, of which only the newest writes; a claim with "
            "the same name in the same group takes over, whatever its resources are.",
        ),
    ] = None,
    lease_ms: Annotated[
        int,
        typer.Option(
            min=LEASE_MS_MIN,
            max=LEASE_MS_MAX,
            help="For how long the claim lives without an answer from the broker.",
        ),
    ] = LEASE_MS,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
) -> None:
    """Claim resources, all or none, and run COMMAND while they are owned.

    COMMAND gets FENCELOG_OWN_EPOCH, FENCELOG_OWN_GENERATION, FENCELOG_OWN_TOKEN (one resource),
    FENCELOG_OWN_TOKENS (JSON), FENCELOG_OWN_TRANSACTIONAL_ID and FENCELOG_BOOTSTRAP_SERVERS in its
    environment. It is stopped, by SIGTERM and then SIGKILL to its process group, before the lease
    is over. The exit status is its own; 75 if ownership was lost, 77 if the claim was refused.

    Without COMMAND the claim is shown as JSON and held until Ctrl-C.
    """
    with reported_errors():
        from fencelog.cli.own_claim import hold
        from fencelog.client.grants import claim_options

        command = context.meta[_COMMAND]
        if command == ():
            raise UsageError("a command is missing after --")
        options = claim_options(
            resources,
            group=group,
            generation=generation,
            transactional_id=transactional_id,
            lease_s=lease_ms / 1000,
            holder=None,
        )
        cluster = connection(bootstrap, properties).options()
        status = asyncio.run(hold(cluster, options, command, waits=wait))
        raise SystemExit(status)


@app.command()
def status(
    resources: AnyResourcesArgument = None,
    group: GroupOption = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Of every group.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Show who owns what; resources that nobody holds, too."""
    with reported_errors():
        if all_groups and group is not None:
            raise UsageError("--all-groups and --group exclude each other")
        with connection(bootstrap, properties).open() as client:
            if all_groups:
                found = client.describe_all_ownership()
                rows = [_row(each) for each in found if not resources or each.resource in resources]
            else:
                found = client.describe_ownership(resources or None, group=group)
                rows = [_row(each) for each in found]
                known = {each.resource for each in found}
                rows += [
                    _never_claimed(group, each) for each in resources or () if each not in known
                ]
        show_rows(rows, COLUMNS, form)


@app.command()
def watch(
    resources: AnyResourcesArgument = None,
    group: GroupOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Show who owns what, and then each change, until Ctrl-C.

    As JSON each resource is an object on a line.
    """
    with reported_errors(), connection(bootstrap, properties).open() as client:
        for found in client.watch_ownership(resources or None, group=group):
            rows = [_row(each) for each in found]
            if (form or default_format()) is Format.JSON:
                for row in rows:
                    show_line(row)
            elif rows:
                show_rows(rows, COLUMNS, Format.TABLE)
                sys.stdout.flush()


@app.command()
def release(
    resources: ResourcesArgument,
    group: GroupOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Free resources, whoever holds them. A claim that has one of them ends as a whole.

    A holder that runs claims again where nobody waits: stop it first.
    """
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            released = client.release_ownership(resources, group=group)
        rows: list[Row] = [
            {"group": group, "resource": each.resource, "epoch": each.epoch, "released": True}
            for each in released
        ]
        known = {each.resource for each in released}
        rows += [
            {"group": group, "resource": each, "epoch": None, "released": False}
            for each in resources
            if each not in known
        ]
        show_rows(rows, ("group", "resource", "epoch", "released"), form)


def _row(found: "OwnershipDescription") -> Row:
    return {
        "group": found.group,
        "resource": found.resource,
        "state": found.state,
        "generation": found.generation,
        "epoch": found.epoch,
        "holder": found.holder,
        "host": found.host,
        "since_ms": found.since_ms,
        "lease_ms": found.lease_ms,
        "fence_offset": found.fence_offset,
        "waiting": found.waiting,
    }


def _never_claimed(group: str | None, resource: str) -> Row:
    return {
        **dict.fromkeys(("since_ms", "lease_ms", "fence_offset", "holder", "host")),
        "group": group,
        "resource": resource,
        "state": "free",
        "generation": None,
        "epoch": None,
        "waiting": 0,
    }
