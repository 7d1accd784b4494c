"""Spark drivers in processes of their own, and places for them to die at."""
