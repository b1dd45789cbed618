"""Forget data or participants."""
