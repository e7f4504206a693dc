"""Many fits as tasks: shared log files, one task's work, running."""
