"""Consumer groups: members, generations and committed offsets (rules E8, E10)."""
