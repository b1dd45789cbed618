"""Watch other frameworks train."""
