"""How participants exchange what they send: by a mixing matrix in memory, or by a rule."""
