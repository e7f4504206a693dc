"""Where interactions come from: files, tables, a generated world."""
