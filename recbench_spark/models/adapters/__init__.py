"""Model adapters: fit, store, rank and predict in a night.

Each kind of model has one.
"""
