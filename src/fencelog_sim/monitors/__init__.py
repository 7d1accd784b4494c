"""Monitors: they check after every step of a run what must hold."""
