"""The client for asyncio: ``async with await fencelog.aio.connect("localhost:9092") as log``."""

from fencelog.client.asynchronous import Claim, Client, Producer
from fencelog.client.cluster import ClusterOptions

__all__ = ["Claim", "Client", "Producer", "connect"]


async def connect(
    bootstrap_servers: str,
    *,
    client_id: str = "fencelog",
    request_timeout_s: float = 30.0,
    api_timeout_s: float | None = None,
) -> Client:
    """Return a client of the cluster at these addresses, ``HOST:PORT`` by commas.

    It is connected: raises RequestError (NETWORK_EXCEPTION) if no broker answers, ValueError for a
    malformed address. An async context manager that belongs to the running loop.
    """
    client = Client(
        ClusterOptions(
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            request_timeout_s=request_timeout_s,
            api_timeout_s=api_timeout_s,
        )
    )
    try:
        await client.cluster.reach()
    except BaseException:
        await client.close()
        raise
    return client
