"""Values and names that every room uses: topic partitions, settings, numbers, JSON."""
