"""The items of a batch task: their rows, costs, keys and shapes, and how each gets its answer."""
