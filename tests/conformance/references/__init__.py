"""The papers' algorithms in plain numpy, one file a paper, written from their pseudo-code.

They exist to be read next to the papers and to check the product. All arithmetic is float64 and every random thing is
an argument: which rows form a batch, which clients take part, and the standard normal draws of the noise.
"""
