"""Transactional ids of claims: which of them a shard serves (rule O8).

All ids of a name, one for each claim, meet in one shard (``coordinated_by``), which remembers the
name's newest owner for ever: an older id stays fenced although its own entry has expired.
"""

from dataclasses import dataclass, field

from fencelog.errors import ErrorCode
from fencelog.log.ownership import Owner
from fencelog.wire.own import owned_key_of


@dataclass(slots=True)
class OwnedIds:
    """The owners of names, and the ids of each name that have an entry.

    Attributes:
        owners: the newest owner, by ``producers_key``.
        ids: each id and its epoch, by ``producers_key``; no empty dictionary is kept.
    """

    owners: dict[str, Owner] = field(default_factory=dict)
    ids: dict[str, dict[str, int]] = field(default_factory=dict)

    def stored(self, transactional_id: str) -> None:
        """Apply a record of an id; called by ``replay`` only."""
        owned = owned_key_of(transactional_id)
        if owned is not None:
            key, epoch = owned
            self.ids.setdefault(key, {})[transactional_id] = epoch

    def forgotten(self, transactional_id: str) -> None:
        """Apply the tombstone of an id; called by ``replay`` only."""
        owned = owned_key_of(transactional_id)
        if owned is not None and owned[0] in self.ids:
            ids = self.ids[owned[0]]
            ids.pop(transactional_id, None)
            if not ids:
                del self.ids[owned[0]]

    def judge(self, transactional_id: str) -> ErrorCode:
        """Return NONE for the id of a live claim and for a client's own id, or the refusal.

        PRODUCER_FENCED: the claim is over. TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which stock
        clients do not retry: no claim was given this id.
        """
        owned = owned_key_of(transactional_id)
        if owned is None:
            return ErrorCode.NONE
        key, epoch = owned
        owner = self.owners.get(key)
        if owner is None or not 0 <= epoch <= owner.epoch:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if epoch < owner.epoch or not owner.is_live:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def ended_by(self, key: str, owner: Owner) -> list[str]:
        """Return the ids whose claims are over once this owner of their name is set.

        For an owner that is not the newest: its own and those before, which the newest has ended.
        """
        known = self.owners.get(key)
        newest = owner if known is None or owner.follows(known) else known
        return [
            transactional_id
            for transactional_id, epoch in self.ids.get(key, {}).items()
            if epoch <= owner.epoch and (epoch < newest.epoch or not newest.is_live)
        ]
