"""Channels turn platform events into messages and back."""
