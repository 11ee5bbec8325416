"""The tools that a model calls, and the registry that runs them."""
