"""The agent: its loop, its context, its skills and its tools."""
