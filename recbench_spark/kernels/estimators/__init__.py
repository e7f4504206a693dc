"""Estimates under exposure bias, of sampled candidates, of rating matrices and logged rounds."""
