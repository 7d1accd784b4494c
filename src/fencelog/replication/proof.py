"""The proof that both ends of a connection belong to the same cluster.

The opener sends BrokerHello, and the target answers with a nonce. The opener then proves with
BrokerProof that it knows the cluster's secret; only then does the target prove the same. A proof is
an HMAC-SHA256 over everything that both have said, so nobody else can use it: not on another
connection (the nonces), not in the other direction (the role), not for another broker or life.
"""

import hmac
from struct import Struct
from typing import NamedTuple

from fencelog.types import NodeId

NONCE_BYTES = 32
SECRET_BYTES = 32
_LENGTH = Struct(">I")
_NUMBER = Struct(">q")
_OPENER = b"fencelog broker proof: opener"
_TARGET = b"fencelog broker proof: target"


class Introduction(NamedTuple):
    """What both ends of a new connection have said."""

    cluster_id: str
    opener: NodeId
    opener_incarnation: str
    target: NodeId
    target_incarnation: str
    connection: int
    """Numbers the opener's connections of its life; a newer one closes the older ones."""
    opener_nonce: bytes
    target_nonce: bytes

    def refusal(self, cluster_id: str, node_id: NodeId, incarnation: str) -> str | None:
        """Return why the target, which is this broker, refuses the hello; None: go on."""
        if self.cluster_id != cluster_id:
            return f"this is cluster {cluster_id}, not {self.cluster_id:.100}"
        if self.target != node_id:
            return f"this is broker {node_id}, not {self.target}"
        if self.target_incarnation != incarnation:
            return f"broker {node_id} has begun another life"
        if self.opener == node_id:
            return f"broker {node_id} opens no connection to itself"
        if len(self.opener_nonce) != NONCE_BYTES:
            return f"a nonce of {len(self.opener_nonce)} bytes instead of {NONCE_BYTES}"
        return None

    def proof_of_opener(self, secret: bytes) -> bytes:
        """Return what the opener sends in BrokerProof."""
        return self._proof(_OPENER, secret)

    def proof_of_target(self, secret: bytes) -> bytes:
        """Return what the target answers to a sound proof."""
        return self._proof(_TARGET, secret)

    def _proof(self, role: bytes, secret: bytes) -> bytes:
        # Each part with its length: no two introductions have the same bytes.
        parts = [
            role,
            self.cluster_id.encode(),
            _NUMBER.pack(self.opener),
            self.opener_incarnation.encode(),
            _NUMBER.pack(self.target),
            self.target_incarnation.encode(),
            _NUMBER.pack(self.connection),
            self.opener_nonce,
            self.target_nonce,
        ]
        said = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
        return hmac.digest(secret, said, "sha256")


def is_sound(expected: bytes, proof: bytes) -> bool:
    """Compare a proof with the expected one, in a time that does not depend on their bytes."""
    return hmac.compare_digest(expected, proof)
