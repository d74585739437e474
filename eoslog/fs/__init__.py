"""Files as the store needs them: replaced as a whole, locked, synced, read while others write."""
