"""Rankings: positions of users' truth items among the candidates, one row per user and part."""
