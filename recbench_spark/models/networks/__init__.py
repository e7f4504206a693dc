"""Models that are trained by gradients: layers over graphs, factors, losses and the training loop."""
