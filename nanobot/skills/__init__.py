"""Skills: folders with a SKILL.md that teach the assistant something when it is needed."""
