"""Shows of the known failures that the tests guard against them: small mutations turn them red."""
