"""Search by signed random projections; exact order of proposed candidates."""
