"""The fixed part of every request, part by part, and the error of the offline estimate.

The fixed part is the system prompt of a new home (shipped workspace files, built-in skills) and
the schemas of all tools, in tokens of OpenAI's cl100k_base, whose vocabulary litellm brings along.
Usage: ``python -m benchmarks.context``.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from nanobot.core.text import text_tokens

ROOT = Path(__file__).parent.parent
MOST = 3000
"""Tokens that the fixed part may have."""

GERMAN = """\
Die Wohnung liegt im dritten Stock eines Hauses aus der Gründerzeit. Der Vermieter hat am
Montag angerufen und gesagt, dass die Heizung erst im Oktober erneuert wird, weil die
Handwerker vorher keinen Termin frei haben. Wir haben uns darauf geeinigt, dass die Miete
für September um zehn Prozent gekürzt wird. Außerdem möchte er, dass wir die Zählerstände
selbst ablesen und ihm bis zum Monatsende per Brief mitteilen. Über die
Nebenkostenabrechnung müssen wir noch sprechen: Die Müllgebühren erscheinen mir ungewöhnlich
hoch, und den Hausmeister habe ich seit Ostern nicht mehr gesehen."""
CHINESE = """\
公寓位于一栋老房子的三楼。房东星期一打电话来说,暖气要到十月份才能更换,因为工人之前没有时
间。我们商定九月份的房租减少百分之十。此外,他希望我们自己抄水电表,并在月底之前用信件告诉
他。关于物业费的结算我们还需要再谈一谈:垃圾处理费在我看来高得异常。请记住我喜欢简短的回答
,并且在下周三之前提醒我给银行打电话。"""
RUSSIAN = """\
Квартира находится на третьем этаже старого дома. Хозяин позвонил в понедельник и сказал,
что отопление заменят только в октябре, потому что у мастеров раньше нет времени. Мы
договорились, что аренда за сентябрь будет снижена на десять процентов."""


@cache
def cl100k() -> Callable[[str], int]:
    """Counts the tokens of a text, from the vocabulary on disk: nothing is fetched."""
    package = find_spec("litellm")
    assert package is not None and package.origin is not None, "litellm is a dependency"
    vocabulary = Path(package.origin).parent / "litellm_core_utils" / "tokenizers"
    os.environ["TIKTOKEN_CACHE_DIR"] = str(vocabulary)
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base")
    return lambda text: len(encoding.encode(text, disallowed_special=()))


def fixed_part(folder: Path) -> dict[str, str]:
    """The texts of the fixed part by name, of a new home made in ``folder``."""
    return asyncio.run(_fixed_part(folder))


async def _fixed_part(folder: Path) -> dict[str, str]:
    from nanobot.app import open_app
    from nanobot.config.load import load_config
    from nanobot.core.text import wire_form
    from nanobot.store.home import Home

    home = Home(folder / ".nanobot")
    loaded = load_config(home.config_file, {})
    environ = {"PATH": os.environ["PATH"]}
    async with open_app(loaded, home, environ, offline_allowed=True) as app:
        prompt = app.context.parts()
        tools = app.tools.specs()
    return {
        **{part.name: part.text for part in prompt},
        **{f"tool {tool.name}": wire_form(tool) for tool in tools},
    }


def samples() -> Mapping[str, str]:
    """Texts of the kinds that conversations are made of."""
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "nanobot" / "agent").glob("*.py"))
    )
    rows = [
        {"id": 7919 * n, "name": f"item {n}", "price": n * 1.25, "at": f"2026-03-{n % 28 + 1:02}"}
        for n in range(200)
    ]
    listing = "\n".join(
        f"-rw-r--r-- 1 ann ann {7919 * n % 99991} Mar {n % 28 + 1:2} 12:{n % 60:02} report-{n}.pdf"
        for n in range(200)
    )
    return {
        "English": (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
        "German": GERMAN,
        "Russian": RUSSIAN,
        "Chinese": CHINESE,
        "Python": sources,
        "JSON": json.dumps(rows),
        "JSON, indented": json.dumps(rows, indent=2),
        "a listing": listing,
    }


def main() -> None:
    """Print both tables."""
    count = cl100k()
    with tempfile.TemporaryDirectory() as folder:
        parts = {name: count(text) for name, text in fixed_part(Path(folder)).items()}
    for name, tokens in parts.items():
        print(f"{tokens:>6}  {name}")
    print(f"{sum(parts.values()):>6}  the fixed part (at most {MOST:,})\n")
    print(f"{'estimated':>10} {'cl100k':>8} {'error':>7}")
    for name, text in samples().items():
        estimated, counted = text_tokens(text), count(text)
        print(f"{estimated:>10} {counted:>8} {estimated / counted - 1:>+7.0%}  {name}")


if __name__ == "__main__":
    main()
