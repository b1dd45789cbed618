"""Detect participants that misbehave."""
