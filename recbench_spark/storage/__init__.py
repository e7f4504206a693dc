"""Storage: the warehouse, Delta files, shared arrays, atomic publishing."""
