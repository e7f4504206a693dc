"""Splits of a log: labels, audit, catalogue, blocks of users, manifests, generated worlds."""
