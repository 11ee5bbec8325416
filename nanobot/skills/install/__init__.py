"""What the owner does with skills: install, scan, lock, check, package; no turn needs any of it."""
