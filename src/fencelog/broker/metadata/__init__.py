"""Topics and settings: the cluster's metadata, and how it changes."""
