class ProducerNotCached(Exception):  # noqa: N818 (no error: a question to the caller)
    topic: str
    partition: int
    producer_id: int
