"""Kafka's own directories: what a broker's log directory holds besides its partitions."""
