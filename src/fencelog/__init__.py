"""fencelog: an exactly-once event log that speaks the Kafka protocol.

``connect`` opens a client; ``fencelog.aio.connect`` one for asyncio. Nothing else is loaded until
it is used.
"""

from fencelog.version import __version__

TYPE_CHECKING = False  # typing has it, and takes ten times as long to import as all of this
if TYPE_CHECKING:
    from fencelog.client.blocking import Client

__all__ = ["__version__", "connect"]


def connect(
    bootstrap_servers: str,
    *,
    client_id: str = "fencelog",
    request_timeout_s: float = 30.0,
    api_timeout_s: float | None = None,
) -> "Client":
    """Return a client of the cluster at these addresses, ``HOST:PORT`` by commas.

    It is connected: raises RequestError (NETWORK_EXCEPTION) if no broker answers, ValueError for a
    malformed address. A context manager; ``Client`` describes the timeouts and what it can do.
    """
    from fencelog.client.blocking import Client

    client = Client(
        bootstrap_servers,
        client_id=client_id,
        request_timeout_s=request_timeout_s,
        api_timeout_s=api_timeout_s,
    )
    try:
        client.run(lambda cluster: cluster.reach())
    except BaseException:
        client.close()
        raise
    return client
