"""How much of a GPU survives the message path: ``python -m bench.gpu``."""
