"""Estimates beside the plain mean: corrected for exposure, for sampled candidates."""
