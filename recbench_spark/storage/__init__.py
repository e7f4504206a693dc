"""Storage: the warehouse, Delta files, shared arrays, and files that runs publish in one atomic step."""
