"""Networks of text."""
