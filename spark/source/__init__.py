"""The readers of the data source `eoslog`: which offsets are read, and as which columns."""
