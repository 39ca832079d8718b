"""The benchmark: what a step costs, and how fast engines generate beside each other."""
