"""The fixtures of the end-to-end tests, for the tests that need a home but no campaign."""

from tests.e2e.conftest import model, nanobot, telegram

__all__ = ["model", "nanobot", "telegram"]
