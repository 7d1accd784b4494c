"""Open partitions: their replicas, waits, flushes and upkeep."""
