"""A hint, not a boundary: commands so plainly destructive that nobody can mean them.

What a text does cannot be told by reading it; the sandbox is what holds. These few patterns stop
slips, and say why, where no sandbox is used.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence

_PREFIXES = frozenset({"sudo", "doas", "env", "nohup", "time", "exec", "command", "nice", "then"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_SYSTEM_PLACES = re.compile(
    r"(/|/\*|~|\$\{?HOME\}?|/(bin|boot|dev|etc|home|lib|lib64|opt|root|sbin|usr|var|Users|System))"
    r"/?\*?"
)
_DISK = re.compile(r"/dev/(sd|hd|vd|xvd|nvme|mmcblk|disk|rdisk|mapper/)\w*")
_FORK_BOMB = re.compile(r"(\b\w{1,30}|:)\s*\(\)\s*\{\s*\1\s*\|\s*\1\s*&\s*\}\s*;\s*\1")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_SEPARATOR = re.compile(r"[();&|<>\n]+|[{}!]")
_MAX_LENGTH = 20_000


def destruction_in(command: str) -> str | None:
    """What a shell command would plainly destroy, or None; quoted text is not a command."""
    command = command[:_MAX_LENGTH]
    if _FORK_BOMB.search(command):
        return "starts processes without end"
    try:
        words = list(_words(_code(command)))
    except ValueError:  # unbalanced quotes: the shell will say so
        return None
    for word, following in itertools.pairwise(words):
        if word.startswith(">") and _DISK.fullmatch(following):
            return f"overwrites the disk {following}"
    return next(filter(None, map(_verdict, _simple_commands(words))), None)


def _code(command: str) -> str:
    """The command without comment lines and here-documents."""
    kept: list[str] = []
    end: str | None = None
    for line in command.replace("\\\n", " ").split("\n"):
        if end is not None:
            end = None if line.strip() == end else end
        elif not line.lstrip().startswith("#"):
            kept.append(line)
            document = _HERE_DOCUMENT.search(line)
            end = document[2] if document else None
    return "\n".join(kept)


def _words(code: str) -> Iterator[str]:
    lexer = shlex.shlex(code, posix=True, punctuation_chars="();&|<>\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    return iter(lexer)


def _simple_commands(words: Sequence[str]) -> Iterator[list[str]]:
    current: list[str] = []
    for word in words:
        if _SEPARATOR.fullmatch(word):
            yield current
            current = []
        else:
            current.append(word)
    yield current


def _verdict(words: list[str]) -> str | None:
    while words and (words[0] in _PREFIXES or re.fullmatch(r"\w+=.*", words[0], re.DOTALL)):
        words = words[1:]
        while words and words[0].startswith("-"):
            words = words[1:]
    if not words:
        return None
    program = words[0].rpartition("/")[2].removeprefix("\\")
    options = [word for word in words[1:] if word.startswith("-")]
    operands = [word for word in words[1:] if not word.startswith("-")]
    places = [word for word in operands if _SYSTEM_PLACES.fullmatch(word)]
    if program in _SHELLS and "-c" in options and operands:
        return destruction_in(operands[0])
    if program == "rm" and places and any(_is_recursive(option) for option in options):
        return f"deletes {places[0]}"
    if (
        program in {"chmod", "chown"}
        and places
        and any(_is_recursive(option) for option in options)
    ):
        return f"changes the rights of everything in {places[0]}"
    if program == "find" and places and "-delete" in options and len(options) == 1:
        return f"deletes {places[0]}"
    if program.partition(".")[0] in {"mkfs", "wipefs", "blkdiscard"} and operands:
        return "erases a disk"
    if program == "dd" and any(
        _DISK.fullmatch(word.removeprefix("of=")) for word in operands if word.startswith("of=")
    ):
        return "overwrites a disk"
    if program in {"shutdown", "reboot", "halt", "poweroff"} and not {"--help", "-c"} & {*options}:
        return "turns the machine off"
    if program == "systemctl" and {"poweroff", "reboot", "halt", "kexec"} & {*operands[:1]}:
        return "turns the machine off"
    return None


def _is_recursive(option: str) -> bool:
    if option.startswith("--"):
        return option in {"--recursive", "--no-preserve-root"}
    return "r" in option or "R" in option
