"""How participants exchange what they send: by a mixing matrix over stacked rows, or by a rule."""
