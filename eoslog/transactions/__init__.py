"""The transaction coordinator, its log, recovery and expiry; named producers."""
