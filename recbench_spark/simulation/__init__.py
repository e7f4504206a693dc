"""Replay of logged auctions: the stage between a log of auctions and the table `replays`."""
