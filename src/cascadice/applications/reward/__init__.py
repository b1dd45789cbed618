"""Reward contributions."""
