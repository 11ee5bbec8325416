"""Skills: folders with a SKILL.md that teach the assistant something when it is needed."""

from nanobot.skills.eligibility import (
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
from nanobot.skills.loader import SkillsLoader

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
