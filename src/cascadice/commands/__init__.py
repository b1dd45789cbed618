"""One module per command: `add(parser)` adds its flags, `run(args)` does what they ask."""
