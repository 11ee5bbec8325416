"""The durable message bus between channels and the agent."""
