"""``python -m tests.mutations [number …]``: applies each mutation to a copy, and runs its tests.

The exit code is 1 when a mutation survives, or when tests fail without any.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.table import MUTATIONS, NUMBERS, Mutation

ROOT = Path(__file__).parents[2]
PASSED, FAILED = 0, 1
"""The exit codes of pytest that say something of the tests; the others say that none ran."""
LIMIT_S = 60
"""Wall clock of a test: one that hangs under a mutation has noticed it, too."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a mutation: ``code`` is pytest's, ``tail`` the end of what it said."""

    mutation: Mutation
    code: int
    seconds: float
    tail: str

    @property
    def verdict(self) -> str:
        """``killed`` by a test, ``SURVIVED`` them all, or ``BROKEN``: no test could run."""
        return {PASSED: "SURVIVED", FAILED: "killed"}.get(self.code, "BROKEN")


def main() -> int:
    """Run the mutations asked for; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, metavar="number", help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once")
    options = parser.parse_args()
    if unknown := {*options.numbers} - {*NUMBERS}:
        parser.error(f"there are no mutations for {', '.join(map(str, sorted(unknown)))}")
    chosen = [one for one in MUTATIONS if one.number in (options.numbers or NUMBERS)]
    with copy_of_the_tree() as tree:
        code, output = run_tests(tree, {test for one in chosen for test in one.tests})
    if code != PASSED:
        print(f"without any mutation the tests fail:\n{output}", file=sys.stderr)
        return 1
    print(f"{'no.':>3}  {'verdict':8}  {'s':>3}  failure, and the tests that notice it", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        findings = list(map(told, pool.map(tried, chosen)))
    killed = sum(finding.verdict == "killed" for finding in findings)
    print(f"{killed} of {len(findings)} mutations killed")
    return int(killed < len(findings))


def told(finding: Finding) -> Finding:
    """Print a line of the table."""
    mutation = finding.mutation
    names = ", ".join(test.removeprefix("tests/") for test in mutation.tests)
    print(
        f"{mutation.number:>3}  {finding.verdict:8}  {finding.seconds:3.0f}  {mutation.failure}\n"
        f"{'':21}{names}",
        flush=True,
    )
    if finding.verdict != "killed":
        print(finding.tail, file=sys.stderr)
    return finding


def tried(mutation: Mutation) -> Finding:
    """Run a mutation's tests in a copy of the tree that has it."""
    began = time.monotonic()
    with copy_of_the_tree() as tree:
        file = tree / mutation.file
        text = file.read_text("utf-8")
        if text.count(mutation.old) != 1:
            return Finding(mutation, -1, 0.0, f"{mutation.file} has changed: {mutation.old!r}")
        file.write_text(text.replace(mutation.old, mutation.new), "utf-8")
        code, output = run_tests(tree, mutation.tests)
    return Finding(mutation, code, time.monotonic() - began, output[-3000:])


def run_tests(tree: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Pytest's exit code and output; what is imported, also by children, is the copy."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *(f"--timeout={LIMIT_S}", *sorted(tests)),
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout


@contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    """A copy of the checkout with what is not committed yet, without what git ignores."""
    with tempfile.TemporaryDirectory(prefix="nanobot-mutation-") as folder:
        for name in _files():
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        yield Path(folder)


def _files() -> Sequence[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


if __name__ == "__main__":
    sys.exit(main())
