"""``fencelog group``: members, offsets and lag of consumer groups; set offsets."""

from typing import TYPE_CHECKING, Annotated

import typer

from fencelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    INDEXES,
    BootstrapOption,
    FormatOption,
    PropertyOption,
    connection,
    whole_number,
)
from fencelog.cli.output import (
    Format,
    Row,
    UsageError,
    default_format,
    reported_errors,
    say,
    show_json,
    show_rows,
)
from fencelog.cli.start_offsets import parse_start
from fencelog.types import TopicPartition

if TYPE_CHECKING:
    from fencelog.client.blocking import Client
    from fencelog.client.model import GroupDescription

app = typer.Typer(
    name="group", help="List, describe, seek and delete consumer groups.", no_args_is_help=True
)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group id.")]
GroupsArgument = Annotated[
    list[str], typer.Argument(metavar="GROUP…", help="One or more group ids.")
]
COLUMNS = ("topic", "partition", "committed", "end", "lag", "member", "client", "host")


@app.command("list")
def list_groups(
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """List groups with their states."""
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            listed = client.list_groups()
        rows: list[Row] = [
            {"group": each.group, "state": each.state, "protocol_type": each.protocol_type}
            for each in listed
        ]
        show_rows(rows, ("group", "state", "protocol_type"), form)


@app.command()
def describe(
    groups: GroupsArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Show members, offsets and lag.

    The lag is computed to the last stable offset, so records behind an open transaction do not
    count. A missing committed offset shows as -; one that an open transaction may change shows as
    pending.
    """
    with reported_errors():
        with connection(bootstrap, properties).open() as client:
            described = [_described(client, client.describe_group(each)) for each in groups]
        if (form or default_format()) is Format.JSON:
            show_json(described)
            return
        for group in described:
            say(
                f"{group['group']}  {group['state']}, {group['members']} members, "
                f"{group['protocol'] or 'no protocol'}, lag {group['lag']}"
            )
            partitions = group["partitions"]
            assert isinstance(partitions, list)
            show_rows(partitions, COLUMNS, Format.TABLE)


def _described(client: "Client", group: "GroupDescription") -> Row:
    owners = {place: member for member in group.members for place in member.partitions}
    places = sorted({*owners, *group.offsets})
    known = {topic.name: len(topic.partitions) for topic in client.topics()}
    live = [place for place in places if place.partition < known.get(place.topic, 0)]
    starts = client.offsets(live, "earliest", "transactional")
    ends = client.offsets(live, "latest", "transactional")
    rows: list[Row] = []
    total = 0
    for place in places:
        found, owner = group.offsets.get(place), owners.get(place)
        committed = None if found is None else found.committed
        lag = None
        if committed is not None and place in ends:
            # Records that retention has deleted cannot be read, so they are no lag.
            lag = max(ends[place] - max(committed, starts[place]), 0)
            total += lag
        is_pending = found is not None and found.pending
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "committed": "pending" if is_pending else committed,
                "end": ends.get(place),
                "lag": lag,
                "member": owner and owner.member_id,
                "instance": owner and owner.instance_id,
                "client": owner and owner.client_id,
                "host": owner and owner.host,
            }
        )
    return {
        "group": group.group,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "members": len(group.members),
        "lag": total,
        "partitions": rows,
    }


@app.command()
def seek(
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            "-o", "--offset", help="The new offset: beginning, end, N, -N (from the end) or @TIME."
        ),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="TOPIC[:PARTITION]",
            help="Default: all partitions on which the group has offsets.",
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Set a group's offsets. The group must have no members."""
    with reported_errors():
        from fencelog.adapters.system_clock import SystemClock
        from fencelog.cli.topic_consume import start_positions

        start = parse_start(to, now_ms=SystemClock().now_ms())
        with connection(bootstrap, properties).open() as client:
            before = client.committed_offsets(group) if topics is None else {}
            places = sorted(before) if topics is None else _places(client, topics)
            if not places:
                raise UsageError(
                    f"group {group} has no committed offsets: name topics with -t TOPIC"
                )
            positions = start_positions(client, places, start, "transactional")
            client.commit_offsets(group, positions)
        rows: list[Row] = [
            {"topic": place.topic, "partition": place.partition, "committed": positions[place]}
            for place in places
        ]
        show_rows(rows, ("topic", "partition", "committed"), form)


def _places(client: "Client", topics: list[str]) -> list[TopicPartition]:
    """The partitions of ``-t``: ``orders`` is all of a topic, ``orders:3`` one partition."""
    places = []
    for text in topics:
        name, colon, number = text.partition(":")
        numbers = client.partitions([name])[name]
        if not colon:
            places += [TopicPartition(name, each) for each in numbers]
            continue
        index = whole_number(number, f"-t {text}: partition", INDEXES)
        if index not in numbers:
            raise UsageError(f"-t {text}: {name} has partitions {numbers[0]} to {numbers[-1]}")
        places.append(TopicPartition(name, index))
    return places


@app.command()
def delete(
    groups: GroupsArgument,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertyOption = None,
    form: FormatOption = None,
) -> None:
    """Delete groups and their offsets. A group must have no members."""
    with reported_errors():
        rows: list[Row] = []
        with connection(bootstrap, properties).open() as client:
            for name in groups:
                client.delete_group(name)
                rows.append({"group": name, "deleted": True})
        show_rows(rows, ("group", "deleted"), form)
