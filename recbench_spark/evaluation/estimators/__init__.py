"""Estimators beside the plain mean: they correct for exposure bias and for sampled candidates."""
