"""``SkillsLoader`` under the name by which the family's programs import it."""

from nanobot.skills.loader import SkillsLoader

__all__ = ["SkillsLoader"]
