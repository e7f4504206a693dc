"""Graphs of nodes and edges: laid out once, embedded layer by layer, by Python tasks over mapped files."""
