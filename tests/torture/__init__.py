"""Attacks on cascadice: `make torture`, or `python -m torture` with tests/ on the path.

One module a kind of attack. An attempt changes, kills or starves something, then asks a question whose right answer is
known. It is held if the answer is right, or if there is none and one line says why.
"""
