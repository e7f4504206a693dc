"""Calls of Spark that differ between its versions and kinds of sessions; no other module knows them."""
