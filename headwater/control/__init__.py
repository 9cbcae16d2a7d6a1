"""Reconcile nodes with the desired state: the store, and the controller that acts on it.

This package reads and writes the store and calls nodes through ``NodePort``; ``headwater.plan`` computes the steps.
Nothing here imports Spark or knows how a node is reached.
"""
