"""The table of mutations is whole: each failure in it, each change possible, each test there."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutations.table import MUTATIONS, NUMBERS

ROOT = Path(__file__).parents[2]


def test_every_failure_has_a_mutation() -> None:
    assert {mutation.number for mutation in MUTATIONS} == set(NUMBERS)


def test_every_mutation_still_applies() -> None:
    counts = {
        (mutation.failure, mutation.file): (ROOT / mutation.file)
        .read_text("utf-8")
        .count(mutation.old)
        for mutation in MUTATIONS
    }

    assert {place: count for place, count in counts.items() if count != 1} == {}


def test_every_mutation_leaves_a_program_and_changes_it() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text("utf-8")
        changed = text.replace(mutation.old, mutation.new)

        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)), mutation.failure


def test_every_test_that_is_named_exists() -> None:
    missing = [
        node
        for mutation in MUTATIONS
        for node in mutation.tests
        if not _exists(*node.partition("::")[::2])
    ]

    assert missing == []


def _exists(file: str, name: str) -> bool:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    functions = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return not name or name in functions
