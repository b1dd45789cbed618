"""One module per command: `add(parser)` adds its flags and says which function to call."""
