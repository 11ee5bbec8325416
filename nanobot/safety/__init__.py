"""Safety: who is let in, which files may be touched, and which secrets are masked."""
