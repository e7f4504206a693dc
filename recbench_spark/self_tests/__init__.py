"""Self-tests: planted faults in nights of a sample, and who saw them."""
