"""The log of one partition, as rules: what may be appended, what may be read, what it adds up to.

Pure: no files, no clock, no waiting. ``partition_log`` is the door; ``rebuild`` makes the same
state from stored batches.
"""
