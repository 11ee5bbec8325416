"""Kills the installed gateway at every point of a message's way and looks at what is left."""
