"""Looking at runs: pictures, frames, terminals."""
