"""Matplotlib figures of influence (`figures`), and pictures of training, data and mixing matrices written to files."""

from cascadice.pictures.figures import agreement, cascade, contributions, decay, matrix, network

__all__ = ["agreement", "cascade", "contributions", "decay", "matrix", "network"]
