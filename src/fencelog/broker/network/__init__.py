"""Connections, their frames, and how requests share the loop."""
