"""The internet for tools: a client kept out of private networks, fetch, search and reading."""
