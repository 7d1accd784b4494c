"""What a fetch reads and waits for, and fetch sessions; no sockets and no files."""
