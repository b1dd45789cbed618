"""Measure influence in runs of other frameworks."""
