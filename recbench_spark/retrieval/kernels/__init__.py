"""Search by signed random projections, and the exact order of candidates that an index returns."""
