"""Choose collaborators."""
