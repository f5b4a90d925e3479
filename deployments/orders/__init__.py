"""What replicas are told beside requests, and who tells them."""
