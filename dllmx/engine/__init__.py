"""Canvas, K/V store, forward over rows, counters and trace."""
