"""Commands: each module has a job's flags and starts its action."""
