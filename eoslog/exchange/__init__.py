"""Exchange with Kafka: what a broker's log directory holds, in and out."""
