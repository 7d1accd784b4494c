"""Storage: a partition's files on a Disk, in Kafka's on-disk layout, and their recovery.

Awaits the Disk port only: no clock, no threads, no sockets.
"""
