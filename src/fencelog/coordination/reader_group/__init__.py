"""Groups of readers that share a stream by replicated state alone (R4 to R11): pure rules."""
