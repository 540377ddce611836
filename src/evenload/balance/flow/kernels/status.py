"""The status of a layer that the router's kernel returns."""

ROUTED, NEGATIVE, UNPLACED_DEMAND, BAD_CAPACITY, OVERFLOW = range(5)
MOST_DEMAND = 1 << 39  # in one layer: products with sums of speeds (22 bits) must stay in 64 bits
