"""Producers: idempotent, transactional and staged."""
