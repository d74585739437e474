"""Consumer groups: coordinator, members, assignors, committed offsets."""
