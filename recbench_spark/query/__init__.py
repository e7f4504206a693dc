"""SQL on the results: guard, engine without Java, prepared queries."""
