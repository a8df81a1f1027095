"""Spectral surgery: a trained network's weights moved along Hessian spikes to rebalance its classes.

Method: Vigna and Bontemps, arXiv 2605.07790. What is moved, and by how much, comes from the sensitivity of each
class's accuracy to each spike, measured on held-out images.
"""
