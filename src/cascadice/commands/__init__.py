"""Commands over a recorded run, one module each: `add(parser)` says what it takes and what it does."""
