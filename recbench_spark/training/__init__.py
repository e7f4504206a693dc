"""What a night does with a model of each kind: fit it, keep it, rank and predict with it."""
