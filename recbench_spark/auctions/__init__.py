"""Replay of logged auctions: models at operating points, on the log as it was."""
