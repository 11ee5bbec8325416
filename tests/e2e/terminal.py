"""A real terminal for tests: a shell in tmux, typed into and read from."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

SCROLLBACK = 2000


class Terminal:
    """A shell in a terminal of 100 by 40 characters (or other), with a clean environment."""

    def __init__(
        self, folder: Path, variables: dict[str, str], *, columns: int = 100, rows: int = 40
    ) -> None:
        self._base = ["tmux", "-S", str(folder / "tmux.sock")]
        environment = [f"{name}={value}" for name, value in variables.items()]
        self.tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows),
            "env", "-i", "TERM=screen-256color", *environment, "sh",
        )  # fmt: skip

    def type(self, text: str, *keys: str) -> None:
        """Type ``text`` letter for letter, then press keys such as ``Enter`` or ``C-c``."""
        if text:
            self.tmux("send-keys", "-l", text)
        if keys:
            self.tmux("send-keys", *keys)

    def paste(self, text: str) -> None:
        """Paste as a mouse does: bracketed where the program has asked for that."""
        self.tmux("set-buffer", text)
        self.tmux("paste-buffer", "-p")

    def screen(self) -> str:
        """What can be seen and scrolled back to; spaces at line ends are not there."""
        return self.tmux("capture-pane", "-p", "-S", f"-{SCROLLBACK}")

    def escapes(self) -> str:
        """The same with the sequences that colour it."""
        return self.tmux("capture-pane", "-p", "-e", "-S", f"-{SCROLLBACK}")

    def wait_for(self, condition: str | Callable[[str], bool], timeout: float = 20) -> str:
        """The screen once it shows ``condition``; fails with what it shows instead."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            screen = self.screen()
            if condition in screen if isinstance(condition, str) else condition(screen):
                return screen
            time.sleep(0.05)
        raise AssertionError(f"never shown: {condition}\n{self.screen()}")

    def wait_for_prompts(self, count: int, timeout: float = 20) -> str:
        """The screen once the conversation has asked ``count`` times and waits for more."""
        return self.wait_for(
            lambda screen: (
                len([line for line in screen.splitlines() if line.startswith("you>")]) == count
                and screen.rstrip().endswith("you>")
            ),
            timeout,
        )

    def clear(self) -> None:
        """Forget what the screen shows, between two commands."""
        self.type("clear", "Enter")
        self.wait_for(lambda screen: screen.splitlines()[-40:][0].strip() in ("#", "$"))
        self.tmux("clear-history")

    def close(self) -> None:
        """End the shell and what runs in it."""
        self.tmux("kill-server")

    def tmux(self, *arguments: str) -> str:
        """Run one tmux command; its output."""
        done = subprocess.run(
            [*self._base, *arguments], capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout
