"""Indexes for item search at serving time, measured against exact lists."""
