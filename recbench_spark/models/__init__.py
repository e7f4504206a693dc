"""Models: settings, what they compute on arrays, and adapters that fit and rank with them."""
