"""The servers of the benchmarks: ours, the peers', and what they need."""
