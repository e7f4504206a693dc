"""Files that runs share: each is made under its maker's name and published whole by one atomic step."""
