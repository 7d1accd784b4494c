"""Streams in the client: segments, shared state, groups of readers (R1 to R11)."""
