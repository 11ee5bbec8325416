"""Models behind one port: adapters, retry, the offline model."""
