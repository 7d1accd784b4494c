"""Consumer groups: the committed offsets of groups that have no members."""
