"""Write docs/reference from the code: settings, metrics, axes, tables, commands, errors, functions."""
