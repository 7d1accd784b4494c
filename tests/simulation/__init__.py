"""Tests of the simulator, and of what it can find."""
