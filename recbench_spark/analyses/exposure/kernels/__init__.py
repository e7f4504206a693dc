"""Estimators on arrays: exposure, propensities, rating matrices, logged rounds."""
