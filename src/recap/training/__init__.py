"""Training of tokenizers and of the three families, small enough to repeat."""
