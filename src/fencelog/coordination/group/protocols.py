"""The assignment protocols that members have in common, and the topics that they read."""

from collections.abc import Collection

from fencelog.coordination.group.soft_state import Member
from fencelog.coordination.group.subscription import CONSUMER, subscribed_topics


def common(members: Collection[Member]) -> frozenset[str]:
    """The protocols that all members support; there must be at least one member."""
    known = [frozenset(each.name for each in member.protocols) for member in members]
    return frozenset.intersection(*known)


def choice(members: Collection[Member]) -> str:
    """The protocol that most members prefer among those that all support."""
    candidates = common(members)
    votes: dict[str, int] = {}
    for member in members:
        favourite = next(each.name for each in member.protocols if each.name in candidates)
        votes[favourite] = votes.get(favourite, 0) + 1
    return max(votes, key=lambda name: votes[name])


def topics_read(protocol_type: str, members: Collection[Member]) -> frozenset[str] | None:
    """The topics that members subscribe to; None where that cannot be told."""
    if protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    for member in members:
        for protocol in member.protocols:
            found = subscribed_topics(protocol.metadata)
            if found is None:
                return None
            topics |= found
    return frozenset(topics)
