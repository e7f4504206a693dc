"""Find, read and check logs and tables from other systems."""
