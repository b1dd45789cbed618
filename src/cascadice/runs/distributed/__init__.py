"""Runs of several processes: how they meet, what they must agree on, and how their folders become one run."""
