"""How much of what answers a question recall shows, against plain BM25, and what it costs.

Four generated worlds, each of a build of its own: the owner's year of short chats in several
languages (``owner``), friends' chit-chat with names (``friends``), long answers with facts let
fall in passing (``essays``), one long working chat in four languages (``colleague``). The last was
written when the ranking was finished.
Usage: ``python -m benchmarks.recall [--size 10000] [--cost 10000 100000]``.
"""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from statistics import mean, median, quantiles

from benchmarks.recalled import colleague, essays, friends, owner
from benchmarks.recalled.world import Asked, Said, World
from nanobot.core.chat import AssistantMessage, ChatMessage, UserMessage
from nanobot.core.messages import Trust
from nanobot.recall.chunks import Sources
from nanobot.recall.tool import Recall, results_text
from nanobot.session.entries import Draft, EntryKind
from nanobot.session.log import append_in
from nanobot.store.schema import MIGRATIONS

WINDOWS = (1000, 4000)
Count = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Share:
    """The mean share of the evidence within each of ``WINDOWS`` tokens, and of how many asked."""

    within: tuple[float, ...]
    questions: int


class Store:
    """A home's state database, HISTORY.md and index, filled with a world."""

    def __init__(self, folder: Path, world: World) -> None:
        self.world = world
        self.sources = Sources(
            folder / "recall.db", folder / "state.db", folder / "HISTORY.md", UTC
        )
        self.append_s = self._fill()
        self.recall = Recall(self.sources, lambda: world.now)
        began = time.perf_counter()
        self.recall.search_now("the first question builds the index")
        self.build_s = time.perf_counter() - began

    def _fill(self) -> float:
        """Write the log as the daemon does; returns the median seconds of one append."""
        connection = sqlite3.connect(self.sources.state, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        for script in MIGRATIONS:
            connection.executescript(script)
        spent: list[float] = []
        connection.execute("BEGIN")
        for number, one in enumerate(self.world.said):
            if not one.session:
                continue
            began = time.perf_counter()
            append_in(connection, one.session, [_draft(one, number)], one.at)
            spent.append(time.perf_counter() - began)
        connection.execute("COMMIT")
        connection.close()
        history = (f"[{s.at:%Y-%m-%d %H:%M}] {s.text}\n" for s in self.world.said if not s.session)
        self.sources.history.write_text("\n".join(history), encoding="utf-8")
        return median(spent)

    def answer(self, question: str) -> str:
        """What the tool shows for a question."""
        return results_text(self.recall.search_now(question).results, zone=UTC)


class Plain:
    """Plain BM25: the messages in an FTS5 table, a query's words joined by OR."""

    def __init__(self, world: World) -> None:
        self._connection = sqlite3.connect(":memory:")
        self._connection.execute("CREATE VIRTUAL TABLE plain USING fts5(head UNINDEXED, text)")
        self._connection.executemany(
            "INSERT INTO plain VALUES (?, ?)",
            (
                (f"[{s.at:%Y-%m-%d %H:%M} {s.session or 'HISTORY.md'}] {s.speaker}: ", s.text)
                for s in world.said
            ),
        )

    def answer(self, question: str) -> str:
        """The best matches in the same form, as many as fill the widest window."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question))
        rows = self._connection.execute(
            "SELECT head || text FROM plain WHERE plain MATCH ? ORDER BY rank LIMIT 200", (words,)
        )
        return "\n\n".join(text for (text,) in rows)


def share(asked: Iterable[Asked], answer: Callable[[str], str], count: Count) -> Share:
    """How much of the evidence is within the first tokens of the answers."""
    found: list[list[float]] = []
    for question in asked:
        shown = _first_tokens(answer(question.text), count)
        found.append([mean(_holds(text, one) for one in question.evidence) for text in shown])
    return Share(tuple(mean(column) for column in zip(*found, strict=True)), len(found))


def tokenizer() -> tuple[str, Count]:
    """cl100k from the file litellm ships, else words and signs as an estimate; named."""
    try:
        import importlib.util

        spec = importlib.util.find_spec("litellm")
        if spec is None or spec.origin is None:
            raise ImportError("litellm")
        shipped = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(shipped))
        import tiktoken

        return "cl100k", tiktoken.get_encoding("cl100k_base").encode_ordinary
    except ImportError:
        return "estimate (words and signs)", estimated


def estimated(text: str) -> list[int]:
    return [match.end() for match in re.finditer(r"[a-zA-Z]{1,6}|\d{1,3}|[^\sa-zA-Z\d]", text)]


def _first_tokens(text: str, count: Count) -> list[str]:
    """The beginnings of ``text`` that have as many tokens as each of ``WINDOWS``."""
    beginnings: list[str] = []
    for window in WINDOWS:
        low, high = 0, min(len(text), window * 8)
        while low < high:
            middle = (low + high + 1) // 2
            if len(count(text[:middle])) <= window:
                low = middle
            else:
                high = middle - 1
        beginnings.append(text[:low])
    return beginnings


def _holds(text: str, evidence: str) -> bool:
    return " ".join(evidence.split()) in " ".join(text.split())


def _draft(one: Said, number: int) -> Draft:
    message: ChatMessage = (
        UserMessage(one.text) if one.speaker == "user" else AssistantMessage(one.text)
    )
    return Draft(
        kind=EntryKind.USER if one.speaker == "user" else EntryKind.ASSISTANT,
        message=message,
        inbound_id=f"generated:{number}",
        principal="owner:cli:owner",
        trust=Trust.TRUSTED,
    )


def measure(size: int, questions: int, seeds: Sequence[int]) -> None:
    """Print the shares of each world, by kind of question, for recall and for plain BM25."""
    name, count = tokenizer()
    print(f"share of the evidence within the first tokens ({name}); {size} messages a world")
    print(f"{'questions':26}{'n':>5}{'recall@1000':>13}{'@4000':>8}{'BM25@1000':>12}{'@4000':>8}")
    for generate in (owner.generate, friends.generate, essays.generate, colleague.generate):
        worlds = [generate(size, questions, seed) for seed in seeds]
        rows: dict[str, list[tuple[Asked, str, str]]] = {}
        for world in worlds:
            with tempfile.TemporaryDirectory() as folder:
                store, plain = Store(Path(folder), world), Plain(world)
                for one in world.asked:
                    row = (one, store.answer(one.text), plain.answer(one.text))
                    rows.setdefault(one.kind, []).append(row)
        if len(rows) > 1:
            rows[f"all of {worlds[0].name}"] = [row for some in rows.values() for row in some]
        for kind, some in rows.items():
            asked = [one for one, _, _ in some]
            ours = iter([text for _, text, _ in some])
            theirs = iter([text for _, _, text in some])
            mine = share(asked, lambda _, it=ours: next(it), count)  # type: ignore[misc]
            other = share(asked, lambda _, it=theirs: next(it), count)  # type: ignore[misc]
            figures = "".join(
                f"{value:>{width}.1%}"
                for value, width in zip((*mine.within, *other.within), (13, 8, 12, 8), strict=True)
            )
            print(f"{kind:26}{mine.questions:>5}{figures}")


def cost(sizes: Sequence[int]) -> None:
    """Print what a query, the index and an append cost at each size."""
    for size in sizes:
        world = owner.generate(size, 200)
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder), world)
            spent: list[float] = []
            worked: list[float] = []
            for one in world.asked:
                began, used = time.perf_counter(), time.process_time()
                store.answer(one.text)
                spent.append((time.perf_counter() - began) * 1000)
                worked.append((time.process_time() - used) * 1000)
            held = store.sources.index.stat().st_size
            each = store.build_s / len(world.said) * 1e6
            print(
                f"{len(world.said)} entries: query p50 {median(spent):.1f} ms, "
                f"p95 {quantiles(spent, n=20)[-1]:.1f} ms (of the processor {median(worked):.1f} "
                f"and {quantiles(worked, n=20)[-1]:.1f} ms); index built in {store.build_s:.1f} s "
                f"({each:.0f} µs an entry, off the turn), {held / 1e6:.1f} MB; "
                f"an append {store.append_s * 1e6:.0f} µs, of which the index adds nothing"
            )


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--questions", type=int, default=150)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--cost", type=int, nargs="*", default=[10_000, 100_000])
    arguments = parser.parse_args()
    if arguments.size:
        measure(arguments.size, arguments.questions, arguments.seeds)
    cost(arguments.cost)


if __name__ == "__main__":
    main()
