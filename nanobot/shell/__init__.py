"""Shell commands: the sandbox, process trees, and the exec and process tools."""
