"""Evaluation of all models of a group over the same users, in one pass of Python."""
