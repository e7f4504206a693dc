"""One pass over all users for all models, and evaluations of tables that a caller passes."""
