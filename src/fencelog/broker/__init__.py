"""The broker's shell: sockets, waits and tasks around the pure rooms."""
