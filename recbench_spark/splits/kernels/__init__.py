"""Rules that hold out rows of a log."""
