"""Replay logged auctions on arrays: mechanism, position curve, clicks, bootstrap."""
