"""Influence put to work: detect, choose, reward, forget, validate."""
