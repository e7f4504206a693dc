"""Runs compared: differences, changes between nights, paradoxes, smallest flips."""
