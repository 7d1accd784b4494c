"""The demo: its data, its kill plan, its audit, and a run on a few synthetic flights."""
