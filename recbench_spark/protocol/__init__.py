"""Splits, their manifests, and the catalogue."""
