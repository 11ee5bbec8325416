"""Long-term memory: MEMORY.md, HISTORY.md and the consolidation that writes them."""
