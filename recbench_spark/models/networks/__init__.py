"""Models trained by gradients: graph layers, factors, losses, training."""
