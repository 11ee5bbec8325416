"""What an Ollama says of its models beside Chat Completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Ollama:
    """One model. ``context`` is what the server gives it once it is loaded, told by ``/api/ps``.

    ``num_ctx`` is a parameter of the model's own file; ``trained`` what the model was made for.
    """

    model: str = "qwen3:latest"
    context: int | None = 4096
    num_ctx: int | None = None
    trained: int = 40_960
    is_loaded: bool = False

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The document for a request to ``/api``; None where there is no such route or model."""
        if path == "/api/ps":
            told = {} if self.context is None else {"context_length": self.context}
            entry = {"name": self.model, "model": self.model, **told}
            return {"models": [entry] if self.is_loaded else []}
        if body.get("model") not in {self.model, self.model.removesuffix(":latest")}:
            return None
        if path == "/api/generate":
            self.is_loaded = True
            return {"model": self.model, "response": "", "done": True, "done_reason": "load"}
        if path == "/api/show":
            given = {"num_ctx": self.num_ctx, "temperature": 0.6}
            lines = [f"{name:<30} {value}" for name, value in given.items() if value is not None]
            info = {"general.architecture": "qwen3", "qwen3.context_length": self.trained}
            return {"parameters": "\n".join(lines), "model_info": info}
        return None
