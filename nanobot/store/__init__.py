"""State on disk: where each path is, atomic files, and the one SQLite database."""
