"""Tests of nanobot."""
