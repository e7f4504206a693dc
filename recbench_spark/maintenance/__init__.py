"""Keep a warehouse small: retention, compaction, removal of unfinished runs."""
