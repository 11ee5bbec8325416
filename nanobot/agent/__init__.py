"""The agent: one turn, from a message to its result."""
