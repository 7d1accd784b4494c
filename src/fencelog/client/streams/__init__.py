"""Streams in the client: admin calls, what a writer knows of ranges, moves at a seal."""
