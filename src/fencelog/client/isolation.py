"""The isolation levels of a reader, as a broker's request has them."""

from fencelog.client.model import WIRE_ISOLATION, Isolation
from fencelog.errors import ErrorCode
from fencelog.rpc.connection import Connection
from fencelog.rpc.failures import failure
from fencelog.wire.api_versions import ApiKey


def isolation_level(isolation: Isolation, connection: Connection) -> int:
    """Return the level's number on the wire.

    Raises RequestError (UNSUPPORTED_VERSION) for ``tail`` at a broker other than fencelog: Kafka
    has two levels, and answers the third with no error that says so, or not at all.
    """
    if isolation == "tail" and ApiKey.DESCRIBE_APP not in connection.versions:
        raise failure(
            ErrorCode.UNSUPPORTED_VERSION, f"isolation level tail at broker {connection.address}"
        )
    return WIRE_ISOLATION[isolation]
