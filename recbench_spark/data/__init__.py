"""Sources of interactions: files, tables and a generated world."""
