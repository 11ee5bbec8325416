"""How large the program is, and how many of its files a plain reply passes through.

Lines, files and functions come from the source; the path of a reply comes from a gateway that runs
under a profiler while it answers one Telegram message from a model on loopback.
Usage: ``python -m benchmarks.size [--no-reply]``.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.concurrency import FIRST_CHAT, owner_config
from tests.fakes.bot_api import BotApi
from tests.fakes.model_replies import Reply
from tests.fakes.model_server import ModelServer

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "nanobot"
CORE = ("agent", "bus", "store", "app.py", "gateway.py")
"""Turn, bus, store and composition: what has a bound of its own."""
LONGEST = 10
FRAME = (ast.FunctionDef, ast.AsyncFunctionDef)

PROFILED = """
import json, signal, sys, threading
package, target = sys.argv[1], sys.argv[2]
files, state = [], {"on": False, "last": None}

def seen(frame, event, argument):
    if state["on"] and event == "call":
        name = frame.f_code.co_filename
        if name.startswith(package) and name != state["last"]:
            state["last"] = name
            files.append(name[len(package) + 1:])

def switch(number, frame):
    state["on"] = number == signal.SIGUSR1
    if not state["on"]:
        with open(target, "w") as out:
            json.dump(files, out)

signal.signal(signal.SIGUSR1, switch)
signal.signal(signal.SIGUSR2, switch)
threading.setprofile(seen)
sys.setprofile(seen)
sys.argv = ["nanobot", *sys.argv[3:]]
from nanobot.cli.main import main
main()
"""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of source: statements, docstrings with comments, and blank ones."""

    code: int = 0
    docs: int = 0
    blank: int = 0

    def __add__(self, other: Lines) -> Lines:
        return Lines(self.code + other.code, self.docs + other.docs, self.blank + other.blank)

    @property
    def total(self) -> int:
        """All lines."""
        return self.code + self.docs + self.blank


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method, with its lines and its number of parameters besides ``self``."""

    name: str
    lines: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package; ``folder`` is its first part below the package."""

    path: Path
    lines: Lines
    functions: tuple[Function, ...]
    defined: tuple[str, ...]
    named: Counter[str]

    @property
    def folder(self) -> str:
        """The room the file belongs to, or its own name at the top."""
        return self.path.relative_to(PACKAGE).parts[0]


def modules() -> list[Module]:
    """Every module of the package, measured."""
    return [_measured(path) for path in sorted(PACKAGE.rglob("*.py"))]


def _measured(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = tuple(
        Function(f"{path.relative_to(PACKAGE)}:{node.name}", _length(node), _parameters(node))
        for node in ast.walk(tree)
        if isinstance(node, FRAME)
    )
    defined = tuple(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, FRAME) and node.name.startswith("_") and not node.name.startswith("__")
    )
    named = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return Module(path, _lines(text, tree), functions, defined, named)


def _lines(text: str, tree: ast.Module) -> Lines:
    docs = {number for node in _docstrings(tree) for number in _span(node)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            docs.add(token.start[0])
    lines = text.splitlines()
    blank = {number for number, line in enumerate(lines, 1) if not line.strip()} - docs
    return Lines(len(lines) - len(docs) - len(blank), len(docs), len(blank))


def _docstrings(tree: ast.Module) -> Iterator[ast.stmt]:
    """Strings that stand as statements: docstrings, also those below a constant or a field."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield node


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(1 for argument in taken if argument.arg not in ("self", "cls"))


def single_callers(found: list[Module]) -> int:
    """How many private functions are named once beside their definition, so have one caller."""
    return sum(1 for module in found for name in module.defined if module.named[name] == 1)


def reply_path() -> list[str]:
    """The files that a gateway enters for one Telegram message, in order, without repetitions."""
    with tempfile.TemporaryDirectory() as name, ModelServer.in_thread() as model:
        folder = Path(name)
        model.answer_with(lambda request: Reply.text("Hello to you."))
        with BotApi.in_thread() as api:
            config = owner_config(api.root, model.url, chats=1)
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "config.json").chmod(0o600)
            target = folder / "path.json"
            process = subprocess.Popen(
                [sys.executable, "-c", PROFILED, PACKAGE, target, "--home", folder, "gateway"],
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
            )
            try:
                api.wait_for_poll(timeout=60)
                for _ in range(2):  # the first answer loads what later ones find loaded
                    sent = len(api.sent)
                    api.inject("hello", chat_id=FIRST_CHAT)
                    api.wait_for_sent(sent + 1, timeout=60)
                    time.sleep(1)
                    process.send_signal(signal.SIGUSR1)
                process.send_signal(signal.SIGUSR2)
                return _written(target)
            finally:
                process.terminate()
                process.wait(20)


def _written(target: Path) -> list[str]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            path: list[str] = json.loads(target.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.1)
        else:
            return path
    raise TimeoutError("the gateway did not say which files it entered")


def main() -> None:
    """Print the table of folders, the longest functions and the path of a reply."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-reply", action="store_true", help="leave out the path of a reply")
    arguments = parser.parse_args()
    found = modules()
    path = [] if arguments.no_reply else reply_path()
    entered = set(path)
    print("| folder | files | lines | code | docs | blank | entered by a reply |")
    print("|---|---|---|---|---|---|---|")
    folders = dict.fromkeys(module.folder for module in found)
    rows = [(folder, [m for m in found if m.folder == folder]) for folder in folders]
    rows.append(("all", found))
    rows.append(("turn, bus, store, composition", [m for m in found if m.folder in CORE]))
    for name, inside in rows:
        lines = sum((module.lines for module in inside), Lines())
        here = sum(1 for m in inside if str(m.path.relative_to(PACKAGE)) in entered)
        print(
            f"| {name} | {len(inside)} | {lines.total} | {lines.code} | {lines.docs} "
            f"| {lines.blank} | {here} |"
        )
    functions = [function for module in found for function in module.functions]
    print(f"\nfunctions: {len(functions)}; private ones with one caller: {single_callers(found)}")
    print("longest functions:")
    for function in sorted(functions, key=lambda one: -one.lines)[:LONGEST]:
        print(f"  {function.lines:4} lines  {function.name}")
    print("most parameters:")
    for function in sorted(functions, key=lambda one: -one.parameters)[:LONGEST]:
        print(f"  {function.parameters:4}  {function.name}")
    if path:
        print(f"\na plain Telegram reply enters {len(entered)} files and changes file {len(path)}")
        print("times: " + " ".join(sorted(entered)))


if __name__ == "__main__":
    main()
