"""The writers of the data source `eoslog`: batches and streams, each committed once."""
