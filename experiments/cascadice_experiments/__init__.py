"""The experiments of the paper, each a module that can be run."""
