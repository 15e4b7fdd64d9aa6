"""How fast sampling is."""
