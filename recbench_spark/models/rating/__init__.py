"""Models for ratings and pairs; `interface` defines, `registry` lists them."""
