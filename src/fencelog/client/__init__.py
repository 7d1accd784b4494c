"""The client side: an asyncio core, a blocking facade over it, and Arrow in and out.

Nothing is imported here: ``fencelog.client.blocking`` is the door, and what is heavy (pyarrow,
numba) loads when a method that needs it is called.
"""
