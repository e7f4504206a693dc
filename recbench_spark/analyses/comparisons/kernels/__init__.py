"""Arrays behind comparisons between two models, or two nights."""
