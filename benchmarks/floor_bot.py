"""The floor: a Telegram bot of python-telegram-bot and httpx that asks a model, and no more.

It keeps nothing, remembers nothing and syncs nothing. What nanobot costs is measured against it.
Usage: ``python -m benchmarks.floor_bot TOKEN API_ROOT MODEL_URL``.
"""

from __future__ import annotations

import sys

import httpx
from telegram import Update
from telegram.ext import Application, ApplicationBuilder, ContextTypes, MessageHandler, filters


def main() -> None:
    """Serve until killed."""
    token, root, model_url = sys.argv[1:]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(timeout=60, limits=limits)

    async def answer(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        message = update.effective_message
        assert message is not None
        asked = {
            "model": "fake-model",
            "messages": [{"role": "user", "content": message.text}],
        }
        response = await client.post(f"{model_url}/chat/completions", json=asked)
        await message.reply_text(response.json()["choices"][0]["message"]["content"])

    builder = ApplicationBuilder().token(token).base_url(f"{root}/bot")
    app: Application = (  # type: ignore[type-arg]
        builder.concurrent_updates(512).connection_pool_size(512).pool_timeout(60).build()
    )
    app.add_handler(MessageHandler(filters.TEXT, answer))
    app.run_polling(timeout=10)


if __name__ == "__main__":
    main()
