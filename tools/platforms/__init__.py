"""Matrix of platforms: the same small jobs under each Spark and Python, classic and by Connect."""
