"""Rankings: users' truth items among the candidates, one row a user and part."""
