"""Check estimates of influence by training again."""
