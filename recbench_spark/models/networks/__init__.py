"""Models that are trained by gradients: layers over graphs, factors, their losses and the loop that fits
them."""
