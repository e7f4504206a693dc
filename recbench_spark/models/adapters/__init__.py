"""Model adapters: how a night fits, stores, ranks and predicts with a model of each kind."""
