"""The tour of ``actorgrid demo``: a Mandelbrot zoom rendered on shared GPUs, and a picture of how that was done."""
