"""The commands that users start: flags, config, session, one library call, exit code."""
