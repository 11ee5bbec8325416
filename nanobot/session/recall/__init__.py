"""Finding again what was once said: an index derived from HISTORY.md and the sessions' logs."""
