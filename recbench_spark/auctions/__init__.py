"""Replay logged auctions with other models and operating points."""
