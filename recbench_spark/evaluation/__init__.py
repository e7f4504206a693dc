"""From held-out items and models to rankings, metrics and their intervals."""
