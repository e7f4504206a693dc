"""Which rows of a log are held out."""
