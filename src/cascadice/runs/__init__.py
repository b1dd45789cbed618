"""Runs on disk: configuration, training into a folder, resuming, and asking a recording."""
