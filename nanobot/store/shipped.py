"""The data that ships with the program: built-in skills and the templates of a workspace."""

from __future__ import annotations

from pathlib import Path

from nanobot.core.errors import StoreUnavailable

_PACKAGE = Path(__file__).parent.parent


def builtin_skills_dir() -> Path:
    """The folder of the built-in skills; raises StoreUnavailable when it was not installed."""
    return shipped_dir("skills", package=_PACKAGE)


def workspace_templates_dir() -> Path:
    """The folder a new workspace is copied from; raises StoreUnavailable when it is missing."""
    return shipped_dir("workspace_templates", package=_PACKAGE)


def shipped_dir(name: str, *, package: Path) -> Path:
    """Where ``name`` is: in the package's ``_data`` (a wheel), else beside it (a checkout)."""
    for place in (package / "_data" / name, package.parent / name):
        if place.is_dir():
            return place
    raise StoreUnavailable(f"{name} is missing from the installation at {package}: reinstall it")
