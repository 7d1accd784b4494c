"""The controller's rules: which brokers hold and lead which partitions. Pure: snapshots to changes."""
