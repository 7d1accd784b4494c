"""The command line against a real broker, as a script would use it."""
