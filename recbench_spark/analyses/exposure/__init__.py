"""Exposure bias: corrected estimates, propensities, logged rounds."""
