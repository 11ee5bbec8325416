"""Wall time of a one-shot against the bare imports it cannot do without, interleaved.

Builds and installs the wheel into a folder of its own, so that what is measured is what a user
runs. Usage: ``python -m benchmarks.one_shot [--rounds 5]``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

BARE = "import asyncio, sqlite3, pydantic, httpx"
RUN = "from nanobot.cli.main import main; main()"


def installed_wheel(folder: Path) -> Path:
    """Build this checkout's wheel and install it, compiled, under ``folder``; returns the path."""
    root = Path(__file__).parent.parent
    wheels, site = folder / "wheels", folder / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(root)]
    subprocess.run([*pip, *build], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
    return site


def measure(folder: Path, rounds: int) -> tuple[float, float]:
    """Median seconds of the bare imports and of a one-shot against the fake model server."""
    site = installed_wheel(folder)
    with ModelServer.in_thread() as server:
        server.answer_with(lambda request: Reply.text("Hello."))
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "NANOBOT_HOME": str(folder / "home"),
            "PYTHONPATH": str(site),
            "NANOBOT_AGENTS__DEFAULTS__MODEL": "fake-model",
            "NANOBOT_PROVIDERS__CUSTOM__API_BASE": server.url,
        }
        ask = [sys.executable, "-c", RUN, "agent", "-m", "hello"]
        _timed(ask, environ)  # the first run makes the home
        pairs = [
            (_timed([sys.executable, "-c", BARE], environ), _timed(ask, environ))
            for _ in range(rounds)
        ]
    return median(bare for bare, _ in pairs), median(asked for _, asked in pairs)


def _timed(command: list[str], environ: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(
        command, env=environ, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def main() -> None:
    """Print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bare, asked = measure(Path(folder), arguments.rounds)
    print(f"bare imports {bare:.3f} s, one-shot {asked:.3f} s, ratio {asked / bare:.2f}")


if __name__ == "__main__":
    main()
