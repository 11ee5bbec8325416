"""The heartbeat: a regular look at the owner's standing tasks."""
