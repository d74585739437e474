"""Commands that show what goes on in a store: they open it to read, and take part in nothing."""
