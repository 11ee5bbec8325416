"""Skills: folders with a SKILL.md that teach the assistant something when it is needed."""

from nanobot.skills.loader import SkillsLoader
from nanobot.skills.model import (
    BrokenSkill,
    Skill,
    SkillBroken,
    SkillInvocation,
    SkillOverride,
    SkillsSnapshot,
    SlashCommand,
    Source,
    Standing,
)

__all__ = [
    "BrokenSkill",
    "Skill",
    "SkillBroken",
    "SkillInvocation",
    "SkillOverride",
    "SkillsLoader",
    "SkillsSnapshot",
    "SlashCommand",
    "Source",
    "Standing",
]
