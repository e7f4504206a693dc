"""SQL on the results: the guard of queries, the engine without Java, and queries of the product itself."""
