"""Models that predict ratings, on arrays. `contract` says what they share, `registry` lists them."""
