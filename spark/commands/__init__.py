"""The commands `eoslog demo` and `eoslog ingest`, and the files that they read."""
