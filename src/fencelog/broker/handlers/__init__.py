"""One module per family of requests; ``table`` joins them."""
