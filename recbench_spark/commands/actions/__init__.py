"""Actions of the commands: one module for each command, imported when the command starts to work."""
