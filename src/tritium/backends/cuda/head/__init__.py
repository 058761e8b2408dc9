"""The output head on a GPU: products with weights of half floats, the largest of long rows, and both through an int8 copy."""
