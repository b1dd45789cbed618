"""Faults by chance: real processes are killed, stopped and lied to, and what they computed is verified."""
