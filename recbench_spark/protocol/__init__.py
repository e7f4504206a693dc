"""Splits, their manifests, the catalogue."""
