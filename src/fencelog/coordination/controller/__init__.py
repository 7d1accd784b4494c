"""The controller's rules: who holds and who leads a partition. Pure: snapshots to changes."""
