"""The client: an asyncio core, a blocking facade, and conversion from and to Arrow.

Nothing is imported here: use ``fencelog.client.blocking``. Heavy packages (pyarrow, numba) are
imported when a method needs them.
"""
