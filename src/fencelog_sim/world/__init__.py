"""The simulated machines: time, network, disk, metadata store and crashes."""
