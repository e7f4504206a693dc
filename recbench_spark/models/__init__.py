"""Models: settings, computations on arrays, adapters for a night."""
