"""A Flower app that trains with differential privacy."""
