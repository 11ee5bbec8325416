"""The benchmark of recall, short: a floor under its quality, above plain BM25."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.recall import Plain, Store, estimated, share
from benchmarks.recalled import essays, friends, owner


@pytest.mark.parametrize(
    ("generator", "floors"),
    [(owner, (0.9, 0.95)), (friends, (0.6, 0.75)), (essays, (0.5, 0.8))],
)
def test_recall_shows_most_of_what_answers_a_question(
    tmp_path: Path, generator: ModuleType, floors: tuple[float, float]
) -> None:
    world = generator.generate(900, 36)
    store = Store(tmp_path, world)

    ours = share(world.asked, store.answer, estimated)
    plain = share(world.asked, Plain(world).answer, estimated)

    assert ours.questions >= 18
    assert ours.within >= floors and ours.within[1] >= floors[1]
    assert ours.within[1] > plain.within[1]
