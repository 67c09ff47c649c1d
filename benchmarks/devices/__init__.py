"""Work of a step on a GPU: counted on a fake GPU, measured on a real GPU."""
