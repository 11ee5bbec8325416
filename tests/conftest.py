"""What holds for the whole suite."""

from hypothesis import settings

# A deadline for one example measures the machine's other work; the suite has its own time-outs.
settings.register_profile("nanobot", deadline=None)
settings.load_profile("nanobot")
