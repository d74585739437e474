"""An embedded log with exactly-once semantics, in Kafka's format."""
