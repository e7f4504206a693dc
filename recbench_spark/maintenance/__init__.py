"""Maintenance of a warehouse: retention of files and rows, compaction, removal of unfinished runs."""
