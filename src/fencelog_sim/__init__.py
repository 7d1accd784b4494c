"""The real broker and real clients in a world of seeded time, network, disk and crashes."""
