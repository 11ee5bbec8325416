"""What the assistant may touch: paths, processes, secrets."""
