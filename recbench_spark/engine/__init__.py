"""What the package needs of Spark, in each version and by Spark Connect: the only place that knows them."""
