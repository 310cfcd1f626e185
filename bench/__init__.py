"""How fast, how large: ``make bench``."""
