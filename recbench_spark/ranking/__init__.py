"""Rankings: where each user's truth items stand among the candidates."""
