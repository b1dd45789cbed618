"""Runs on disk: configuration, training into a folder, resuming, and questions about recordings."""
