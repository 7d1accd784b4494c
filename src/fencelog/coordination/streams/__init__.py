"""Streams: topics whose partitions, the segments, split and merge (R1 to R3, ADR 22)."""
