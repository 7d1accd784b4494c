"""The rules of one partition's log: what may be appended, what may be read, what state follows.

Pure: no files, no clock, no waiting. ``partition_log`` is the interface; ``rebuild`` makes the same
state from stored batches.
"""
