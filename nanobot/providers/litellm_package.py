"""The litellm package: imported when first needed, off the event loop, without side effects."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from nanobot.core.errors import ProviderError

PIN = "litellm==1.90.7"

# Without these it fetches its prices and a list of header names over the network.
_SWITCHES = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
}
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


class LiteLLM:
    """Gives the module to the adapters of one app, which closes it; the import is the process's."""

    def __init__(self) -> None:
        self._module: Any = None
        self._loading: asyncio.Future[Any] | None = None

    @property
    def is_loaded(self) -> bool:
        return self._module is not None

    async def load(self) -> Any:
        """The module. The first call takes seconds, in a thread; calls meanwhile share it.

        Raises ProviderError where it is not installed or cannot be imported.
        """
        if self._module is None:
            if self._loading is None:
                self._loading = _in_daemon_thread()
            try:
                # A caller that gives up leaves the import to the others.
                self._module = await asyncio.shield(self._loading)
            except Exception as error:  # a package of its size fails to import in many ways
                self._loading = None
                raise ProviderError(
                    f"this provider needs litellm, which cannot be imported ({error}): "
                    f"pip install '{PIN}'"
                ) from error
        return self._module

    async def aclose(self) -> None:
        """Close the connections that litellm keeps; it makes new ones when called again."""
        if self._module is None:
            return
        await self._module.close_litellm_async_clients()
        self._module.in_memory_llm_clients_cache.flush_cache()
        # Made again on the next use, as it was on the first.
        vars(self._module).pop("module_level_aclient", None)


def _in_daemon_thread() -> asyncio.Future[Any]:
    """The import in a thread that does not hold the process back when it has to end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(module: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(module)
        else:
            future.set_exception(error)
            future.exception()  # looked at here, in case nobody waits any more

    def work() -> None:
        module, failure = None, None
        try:
            module = _imported()
        except BaseException as error:  # handed to those who wait
            failure = error
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(settle, module, failure)
            except RuntimeError:  # the loop was closed in between
                return

    threading.Thread(target=work, name="import litellm", daemon=True).start()
    return future


def _imported() -> Any:
    """Import litellm and make it quiet and local."""
    with _switches(), _no_collection():
        module: Any = import_module("litellm")
        # What the first call would load on the event loop or fetch.
        import_module("litellm.anthropic_beta_headers_manager").reload_beta_headers_config()
        import_module("openai.resources.chat")
        module.module_level_aclient  # noqa: B018 (made by the look at it, TLS context and all)
    module.suppress_debug_info = True
    module.disable_hf_tokenizer_download = True
    for name in _LOGGERS:
        # Its own handler writes to stderr past everybody's settings.
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.ERROR)
    return module


@contextmanager
def _switches() -> Iterator[None]:
    """The environment litellm looks at while it is imported; afterwards as it was.

    Only the path it sets for tiktoken stays: without that it would download its tables.
    """
    before = {name: os.environ.get(name) for name in _SWITCHES}
    os.environ.update(_SWITCHES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection over half a million new objects, now or later."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
