"""Which brokers hold and lead which partitions. Pure: from what is stored to what changes."""
