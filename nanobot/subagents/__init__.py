"""Subagents: tasks that the assistant works on in the background."""
