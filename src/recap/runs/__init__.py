"""Many processes, one run: who takes part, who draws what, and a folder that loses nothing."""
