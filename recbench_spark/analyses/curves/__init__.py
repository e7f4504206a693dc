"""Learning curves: metrics after each further rating of a user."""
