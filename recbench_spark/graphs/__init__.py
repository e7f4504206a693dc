"""Build graphs once, and embed their nodes layer by layer, by Python tasks over mapped files."""
