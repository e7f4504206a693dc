"""Label, audit and number a log's rows; generate worlds."""
