"""Consumer groups: for now the committed offsets of groups that have no members."""
