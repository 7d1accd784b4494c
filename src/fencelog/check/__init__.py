"""What happened, and whether exactly-once held: histories in, verdicts out."""
