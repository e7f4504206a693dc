"""Storage: tables, arrays that workers map, and files that are published whole by one atomic step."""
