"""The coordinators: pure rules over replayed records; ``shard`` has their common interface."""
