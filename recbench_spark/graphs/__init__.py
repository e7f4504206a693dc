"""Build graphs, and embed their nodes layer by layer.

Python tasks do the work on mapped files.
"""
