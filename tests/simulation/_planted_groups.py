"""Bugs in groups, and in the offsets that they commit inside of transactions."""

from tests.simulation._bug import Bug, Edit

SHARD = "coordination/group/shard.py"
GROUP = "coordination/group/group.py"
OFFSETS = "coordination/group/offsets.py"
HANDLERS = "broker/handlers/group_offsets.py"
RUNTIME = "broker/coordinators/runtime.py"
COPY = ("copy",)
REFUSAL = "            error = group.validate_caller(caller)\n"

GENERATION_NOT_CHECKED = Bug(
    "generation check",
    "E8",
    "offsets are taken from a member of an earlier generation",
    (
        Edit(
            SHARD,
            REFUSAL,
            "            error = group.validate_member(caller.member_id, caller.instance_id)\n",
        ),
    ),
    COPY,
)
MEMBERSHIP_NOT_CHECKED = Bug(
    "member and generation check",
    "E8",
    "offsets are taken from whoever says that it is a member",
    (
        Edit(SHARD, REFUSAL, "            error = ErrorCode.NONE\n"),
        Edit(
            SHARD,
            "            is_named = bool(caller.member_id)\n"
            "            return ErrorCode.UNKNOWN_MEMBER_ID if is_named"
            " else ErrorCode.ILLEGAL_GENERATION\n",
            "            return ErrorCode.NONE\n",
        ),
    ),
    COPY,
)
GROUP_BUGS: tuple[Bug, ...] = (
    GENERATION_NOT_CHECKED,
    MEMBERSHIP_NOT_CHECKED,
    Bug(
        "generation given twice",
        "E8",
        "a generation is not stored before its members hear of it, and numbered again after a kill",
        (
            Edit(
                GROUP,
                "            member.joining = None\n"
                "        # Before any member is told: a crash must not let two generations have"
                " one number.\n"
                "        self.store(step, begun)\n",
                "            member.joining = None\n"
                "        vars(self)['_stored_groups'][self.name] = begun\n",
            ),
        ),
        COPY,
    ),
    Bug(
        "pending offsets not waited for",
        "E8",
        "a new member is told the offset from before a transaction that is about to commit",
        (Edit(HANDLERS, "    unstable = pending.intersection(names)\n", "    unstable = set()\n"),),
        COPY,
    ),
    Bug(
        "pending offsets count at once",
        "E10",
        "offsets of a transaction are visible before it is decided",
        (
            Edit(
                SHARD,
                "        if record.producer_id == NO_PRODUCER_ID:\n",
                "        if True:\n",
            ),
        ),
        COPY,
    ),
    Bug(
        "aborted offsets count",
        "E10",
        "a marker of either kind makes the offsets of its transaction count",
        (
            Edit(
                OFFSETS,
                "            if commit:\n                self._settle",
                "            self._settle",
            ),
        ),
        COPY,
    ),
    Bug(
        "committed offsets never count",
        "E10",
        "the shard does not hear of the markers in its partition",
        (
            Edit(
                RUNTIME,
                "        partition.marked = lambda markers: self._marked(loaded, markers)\n",
                "",
            ),
        ),
        COPY,
    ),
    Bug(
        "markers overlooked in a load of offsets",
        "E15",
        "a load takes no notice of the markers between the offsets",
        (
            Edit(
                RUNTIME,
                "            if self._replay_marker is not None:\n"
                "                self._replay_marker(loaded.shard, header.producer_id,"
                " read_marker(batch).commit)\n"
                "            return\n",
                "            return\n",
            ),
        ),
        COPY,
    ),
    Bug(
        "offset commit answered before it is durable",
        "E16",
        "TxnOffsetCommit is answered before its record is durable",
        (
            Edit(
                RUNTIME,
                "        if not isinstance(response, Rejected):\n"
                "            await self._settled(loaded)\n"
                "        return response\n",
                "        return response\n",
            ),
        ),
        COPY,
    ),
)
