"""Arrays in, arrays out: numpy, numba, torch. Nothing here knows Spark."""
