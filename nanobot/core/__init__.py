"""Pure values and ports that every other part speaks in; nothing here does I/O."""
