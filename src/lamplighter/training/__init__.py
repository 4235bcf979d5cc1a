"""Training: the fit loop, rewinding, and rounds of pruning and training."""
