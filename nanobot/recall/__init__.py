"""Recall: searching HISTORY.md and all past conversations."""
