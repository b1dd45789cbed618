"""Matplotlib figures of training, data, mixing matrices and influence, from plain arrays."""
