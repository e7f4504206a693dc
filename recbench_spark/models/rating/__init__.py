"""Models that predict ratings, on arrays. `interface` defines what they share, `registry` lists them."""
