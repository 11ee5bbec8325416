"""nanobot: a personal assistant that lives on its owner's own machine."""

import sys

__version__ = "0.1.0"

# httpx imports a command line of its own, rich and all, wherever rich is installed: 40 ms for
# nothing. None means "cannot be imported" (import system, sys.modules), which httpx allows for.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
