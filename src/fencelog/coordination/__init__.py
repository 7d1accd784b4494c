"""The coordinators: pure rules over replayed records, one shape for all (see ``shard``)."""
