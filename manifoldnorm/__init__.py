"""Layers, optimizers and graph norms for networks whose states, weights or data live on a manifold."""
