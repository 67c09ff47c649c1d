"""What the operator's decisions cost a request, and strict thinking beside them."""
