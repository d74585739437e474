"""`Store`: opening, closing, background work, and what the public calls delegate to."""
