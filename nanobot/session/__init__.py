"""A conversation as an append-only log and what is derived from it."""
