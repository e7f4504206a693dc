"""Models for ratings and pairs, on arrays; `registry` lists them."""
