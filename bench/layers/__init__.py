"""HTTP/2 layers beside each other, as servers that only answer and as clients."""
