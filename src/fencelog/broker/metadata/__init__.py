"""Topics and settings: what the cluster knows, and how it changes."""
