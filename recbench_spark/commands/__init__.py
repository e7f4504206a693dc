"""Commands of the package: each module has the flags of a job and starts its action."""
