"""A reader group by its name: create it, look at it, change where it reads, delete it (R4, R10)."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from fencelog.client.admin import Admin
from fencelog.client.cluster import Cluster
from fencelog.client.groups import Groups
from fencelog.client.model import Isolation, OffsetSpec
from fencelog.client.ownership import Ownership
from fencelog.client.retry import retrying
from fencelog.client.streams.admin import StreamAdmin
from fencelog.client.streams.fence import fence
from fencelog.client.streams.group_model import (
    STATE_BYTES_MAX,
    OnCheckpoint,
    ReaderDescription,
    ReaderGroupDescription,
    ReaderGroupError,
    ReaderGroupNotFoundError,
    ReaderOptions,
    StreamMadeAgainError,
    check_name,
    group_of,
    state_topic,
)
from fencelog.client.streams.group_reader import GroupReader
from fencelog.client.streams.group_state import GroupCopy
from fencelog.client.streams.model import StreamDescription
from fencelog.client.streams.positions import committed, metadata_of
from fencelog.client.streams.unread import unread_bytes
from fencelog.coordination.reader_group import cuts
from fencelog.coordination.reader_group.state import EARLIEST, LATEST, Cut, GroupState, Settings
from fencelog.coordination.reader_group.updates import (
    CheckpointBegun,
    CheckpointDropped,
    Created,
    Reset,
    WentOffline,
)
from fencelog.coordination.streams.model import SegmentState
from fencelog.errors import ErrorCode, RequestError
from fencelog.rpc.failures import failure
from fencelog.types import TopicPartition
from fencelog.wire.own import OWNED_PREFIX

NO_INCARNATION = -1
STATE_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(STATE_BYTES_MAX),
    "compression.type": "producer",
    # Or the updates of a reader whose clock is an hour ahead would be refused.
    "message.timestamp.type": "LogAppendTime",
}


class ReaderGroup:
    """A group of readers that share a stream. Belongs to one event loop; holds nothing open.

    With a ``stream`` the group is created at its first use; without one it exists already.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        stream: str | None = None,
        *,
        start: str | Cut = EARLIEST,
        end: Cut | None = None,
    ) -> None:
        """Made by ``Client.reader_group``. Raises ValueError for a name that none may have."""
        self.name = check_name("reader group", name)
        self._cluster, self._stream, self._start, self._end = cluster, stream, start, end
        if isinstance(start, str) and start not in (EARLIEST, LATEST):
            raise ValueError(f"start {start!r}: expected earliest, latest or a stream cut")
        self._copy = GroupCopy(cluster, name)
        self._is_created = False

    # --- create, get, delete

    async def create(self) -> None:
        """Create the group. Harmless again with the same settings.

        Raises ReaderGroupError if it exists with others, or a cut does not fit the stream;
        RequestError.
        """
        if self._stream is None:
            raise ReaderGroupError(f"reader group {self.name}: name the stream that it is to read")
        described = await StreamAdmin(self._cluster).describe_stream(self._stream)
        settings = Settings(
            stream=self._stream,
            topic_id=described.topic_id.hex(),
            start=self._start,
            end=self._end,
        )
        try:
            cut = await self._first_cut(described)
        except cuts.CutError as error:
            raise ReaderGroupError(f"reader group {self.name} of {self._stream}: {error}") from None
        admin = Admin(self._cluster)
        try:
            await admin.create_topic(state_topic(self.name), 1, STATE_CONFIGS, -1)
        except RequestError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        # Generations of a deleted group of this name are lower.
        owned = await Ownership(self._cluster).describe(self.name, None)
        base = max((each.generation for each in owned), default=-1) + 1

        def created(state: GroupState) -> Created | None:
            if state.settings is None:
                return Created(settings, base, cut)
            if replace(state.settings, topic_id=settings.topic_id) == settings != state.settings:
                raise StreamMadeAgainError(settings.stream)
            if state.settings != settings:
                raise ReaderGroupError(
                    f"reader group {self.name} exists with other settings: {state.settings}, and "
                    f"not {settings}; use another name, or delete it first"
                )
            return None

        await self._copy.write(created)
        self._is_created = True

    async def get(self) -> ReaderGroupDescription:
        """Return the group as it is now. Raises ReaderGroupError if it does not exist."""
        state = await self._state()
        return described_group(self.name, state)

    async def delete(self) -> None:
        """Delete the group with its positions. Its readers end with an error."""
        topic = state_topic(self.name)
        await Admin(self._cluster).delete_topic(topic)
        self._copy, self._is_created = GroupCopy(self._cluster, self.name), False
        ownership = Ownership(self._cluster)
        for group in (self.name, topic):
            held = [
                each.resource
                for each in await ownership.describe(group, None)
                if each.state != "free" and not each.resource.startswith(OWNED_PREFIX)
            ]
            if held:
                await ownership.release(group, held)
        try:
            await Groups(self._cluster).delete(self.name)
        except RequestError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise

    # --- its readers

    def reader(
        self,
        name: str,
        *,
        isolation: Isolation = "transactional",
        lease_s: float = 10.0,
        window_s: float = 1.0,
        commit_interval_s: float | None = 5.0,
        on_checkpoint: OnCheckpoint | None = None,
    ) -> GroupReader:
        """Return a reader of the group; it is online from entering to leaving.

        ``ReaderOptions`` describes the parameters. Raises ValueError for a name that none may have.
        """
        options = ReaderOptions(
            isolation=isolation,
            lease_s=lease_s,
            window_s=window_s,
            commit_interval_s=commit_interval_s,
            on_checkpoint=on_checkpoint,
        )
        check_name("reader", name)
        return GroupReader(self._cluster, self.name, name, options, self._prepare)

    async def reader_offline(self, name: str, positions: Cut | None = None) -> None:
        """Declare a reader offline: others take its segments over at once, and it is fenced (R9).

        Without positions they go on at the last ones that the state has, or that were committed
        since. With positions exactly there. Once this has returned the reader commits nothing.
        Harmless where the reader is not online. Raises ReaderGroupError for a position that its
        segment does not have; RequestError.
        """
        if positions:
            await self._check_positions(positions)
        incarnation, held = NO_INCARNATION, set[str]()

        def offline(state: GroupState) -> WentOffline | None:
            nonlocal incarnation, held
            self._check_created(state)
            found = state.readers.get(name)
            if found is None:
                return None
            incarnation = found.incarnation
            assert state.settings is not None, "it was checked"
            held = {f"{state.settings.stream}/{index}" for index in found.segments}
            is_exact = positions is not None
            return WentOffline(name, found.incarnation, positions or {}, is_exact)

        offset = await self._copy.write(offline)
        if offset is not None and held:
            try:
                # Whoever takes them over does so by a later update.
                await fence(self._cluster, self.name, held, self._copy.state.base + offset)
            except RequestError as error:
                # Of a stream that was deleted nothing can be committed.
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        # Its claim ends too, so that it learns of it without a look at the state: but not that of
        # an incarnation that has joined since.
        ownership, claims = Ownership(self._cluster), state_topic(self.name)
        with suppress(RequestError):
            if any(each.epoch == incarnation for each in await ownership.describe(claims, [name])):
                await ownership.release(claims, [name])

    # --- checkpoints and cuts

    async def checkpoint(self, name: str) -> None:
        """Begin a checkpoint: each reader reaches it between two events (R10).

        Raises ReaderGroupError if there is one of this name.
        """
        await self._copy.write(lambda _: CheckpointBegun(name))

    async def checkpoint_cut(self, name: str) -> Cut:
        """Wait until the whole group has reached a checkpoint; return its stream cut.

        Raises ReaderGroupError if there is none, or it is dropped meanwhile.
        """
        state = await self._state()
        while True:
            found = state.checkpoints.get(name)
            if found is None:
                raise ReaderGroupError(f"reader group {self.name} has no checkpoint {name}")
            if found.is_complete:
                return dict(found.positions)
            state = await self._copy.wait_changed()

    async def drop_checkpoint(self, name: str) -> None:
        """Forget a checkpoint. Raises ReaderGroupError if there is none of this name."""
        await self._copy.write(lambda _: CheckpointDropped(name))

    async def stream_cut(self) -> Cut:
        """Return where the group is now: committed positions, and those of the state."""
        state = await self._state()
        return await self._positions(state)

    async def reset(self, to: str | Cut) -> None:
        """Let the group go on elsewhere: a checkpoint by its name, a cut, earliest or latest.

        All readers stop what they read, and take segments anew. Committed positions do not count
        any more. If the stream was deleted and made again, they go on in the new one, and the
        checkpoints are forgotten. Raises ReaderGroupError for an unknown checkpoint and a cut that
        does not fit.
        """
        state = await self._state()
        settings = state.settings
        assert settings is not None, "it was checked"
        described = await StreamAdmin(self._cluster).describe_stream(settings.stream)
        topic_id = described.topic_id.hex()
        if topic_id != settings.topic_id and settings.end is not None:
            raise ReaderGroupError(
                f"reader group {self.name} ends at a cut of a stream {settings.stream} that was "
                "deleted; delete the group, and create it with a cut of the new one"
            )
        try:
            cut = await self._cut_of(to, state, described)
            cuts.check_cut(described.stream, cut)
            await self._check_written(described, cut)
            if settings.end is not None:
                cuts.check_order(described.stream, cut, settings.end)
        except cuts.CutError as error:
            raise ReaderGroupError(f"reset of reader group {self.name}: {error}") from None

        def reset(state: GroupState) -> Reset:
            self._check_created(state)
            is_same = state.settings is not None and state.settings.topic_id == topic_id
            return Reset(cut, None if is_same else topic_id)

        await self._copy.write(reset)

    async def unread_events(self) -> int:
        """Return how many offsets are between the group and the end of its stream (R10).

        Markers and other control records take offsets too, so it is no less than the events.
        """
        state = await self._state()
        settings, described = await self._described(state)
        open_now = [each.index for each in described.segments if each.end < 0]
        ends = await self._offsets(settings.stream, open_now, "latest")
        return cuts.unread(described.stream, await self._positions(state), ends, settings.end)

    async def unread_bytes(self) -> int:
        """Return how many stored bytes are between the group and the end of its stream (R10).

        Brokers find them by their indexes: for each segment up to ``index.interval.bytes`` too many
        (4 KiB by default). Compressed batches count as they are stored, control records too.
        """
        state = await self._state()
        settings, described = await self._described(state)
        ahead = cuts.ahead(described.stream, await self._positions(state), settings.end)
        total = await unread_bytes(self._cluster, settings.stream, ahead)
        ends = settings.end or {}
        beyond = {index: max(at, ends[index]) for index, at in ahead.items() if index in ends}
        return max(total - await unread_bytes(self._cluster, settings.stream, beyond), 0)

    # --- inside

    async def _prepare(self) -> None:
        if self._is_created:
            return
        if self._stream is not None:
            await self.create()
        else:
            await self._state()

    async def _state(self) -> GroupState:
        try:
            state = await self._copy.fetch()
        except RequestError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise self._missing() from error
        self._check_created(state)
        return state

    async def _described(self, state: GroupState) -> tuple[Settings, StreamDescription]:
        """Return the group's stream. Raises StreamMadeAgainError where it is another one."""
        settings = state.settings
        assert settings is not None, "it was checked"
        described = await StreamAdmin(self._cluster).describe_stream(settings.stream)
        if described.topic_id.hex() != settings.topic_id:
            raise StreamMadeAgainError(settings.stream)
        return settings, described

    def _check_created(self, state: GroupState) -> None:
        if state.settings is None:
            raise self._missing()

    def _missing(self) -> ReaderGroupNotFoundError:
        return ReaderGroupNotFoundError(
            f"there is no reader group {self.name}; create it with the name of its stream"
        )

    async def _first_cut(self, described: StreamDescription) -> Cut:
        start = self._start
        if start == LATEST:
            cut: Cut = await self._newest(described)
        elif isinstance(start, str):
            cut = await self._earliest(described)
        else:
            cut = start
        cuts.check_cut(described.stream, cut)
        await self._check_written(described, cut)
        if self._end is not None:
            cuts.check_cut(described.stream, self._end)
            cuts.check_order(described.stream, cut, self._end)
        return cut

    async def _check_positions(self, positions: Cut) -> None:
        _, described = await self._described(await self._state())
        try:
            await self._check_written(described, positions)
        except cuts.CutError as error:
            raise ReaderGroupError(f"positions in reader group {self.name}: {error}") from None

    async def _check_written(self, described: StreamDescription, positions: Cut) -> None:
        """Raise CutError for positions that segments do not have."""
        cuts.check_offsets(described.stream, positions, {})
        written = [index for index in positions if described.segments[index].end < 0]
        ends = await self._offsets(described.name, written, "latest", "replicated")
        cuts.check_offsets(described.stream, positions, ends)

    async def _cut_of(self, to: str | Cut, state: GroupState, described: StreamDescription) -> Cut:
        if not isinstance(to, str):
            return to
        settings = state.settings
        is_same = settings is not None and settings.topic_id == described.topic_id.hex()
        if is_same and (found := state.checkpoints.get(to)) is not None:
            if not found.is_complete:
                raise cuts.CutError(f"the group has not reached checkpoint {to} as a whole")
            return found.positions
        if to == EARLIEST:
            return await self._earliest(described)
        if to == LATEST:
            return await self._newest(described)
        of = "" if is_same else f" of the stream {described.name} that was made again"
        raise cuts.CutError(f"there is no checkpoint {to}{of}")

    async def _earliest(self, described: StreamDescription) -> Cut:
        """Return the cut before which retention has deleted everything."""
        cut = cuts.earliest(described.stream)
        there = [
            index for index in cut if described.segments[index].state is not SegmentState.DELETED
        ]
        return {**cut, **await self._offsets(described.name, there, "earliest")}

    async def _newest(self, described: StreamDescription) -> Cut:
        """Return the cut at the ends; no segment of it may be about to end."""
        admin = StreamAdmin(self._cluster)

        async def attempt() -> Cut:
            found = await admin.describe_stream(described.name)
            covering = found.stream.covering
            if any(each.state is not SegmentState.OPEN for each in covering):
                raise failure(ErrorCode.RESIZE_IN_PROGRESS, f"ends of stream {found.name}")
            ends = await self._offsets(found.name, [each.index for each in covering], "latest")
            return cuts.newest(found.stream, ends)

        return await retrying(attempt, self._cluster.deadline())

    async def _offsets(
        self,
        stream: str,
        indexes: Sequence[int],
        spec: OffsetSpec,
        isolation: Isolation = "transactional",
    ) -> Mapping[int, int]:
        places = [TopicPartition(stream, index) for index in indexes]
        found = await Admin(self._cluster).offsets(places, spec, isolation)
        return {place.partition: offset for place, offset in found.items()}

    async def _positions(self, state: GroupState) -> Cut:
        """Return the state's cut, with what was committed since."""
        settings = state.settings
        assert settings is not None, "it was checked"
        found = await committed(self._cluster, self.name, settings.stream)
        cut = state.cut()
        for index, (offset, metadata) in found.items():
            origin = state.origin_of(index)
            if origin is not None and metadata == metadata_of(self._copy.topic_id, origin):
                cut[index] = max(cut[index], offset)
        return cut


def described_group(name: str, state: GroupState) -> ReaderGroupDescription:
    """Return what a state says of its group."""
    assert state.settings is not None, "it exists"
    return ReaderGroupDescription(
        name=name,
        stream=state.settings.stream,
        readers=tuple(
            ReaderDescription(
                name=reader,
                incarnation=each.incarnation,
                segments={index: owned.offset for index, owned in sorted(each.segments.items())},
            )
            for reader, each in sorted(state.readers.items())
        ),
        unassigned={index: at.offset for index, at in sorted(state.unassigned.items())},
        future={index: tuple(sorted(each.waiting)) for index, each in sorted(state.future.items())},
        checkpoints={
            each: dict(found.positions) if found.is_complete else None
            for each, found in state.checkpoints.items()
        },
        is_finished=state.is_finished,
    )


async def reader_groups(cluster: Cluster) -> list[str]:
    """Return the names of all reader groups, sorted."""
    topics = await Admin(cluster).topics()
    return sorted(name for topic in topics if (name := group_of(topic.name)) is not None)
