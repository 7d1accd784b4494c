"""The broker: sockets, waits and tasks around the pure packages."""
