"""Estimates that correct for exposure bias, propensities, and logged rounds."""
