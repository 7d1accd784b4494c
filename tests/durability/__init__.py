"""Durability is seen: what a real broker process writes, syncs and answers, in its true order."""
