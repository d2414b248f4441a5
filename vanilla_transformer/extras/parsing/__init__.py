"""Section 6.3: constituency parsing as translation into trees."""
