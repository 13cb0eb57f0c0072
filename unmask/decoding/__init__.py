"""The denoising loop and all that it is made of: canvas, plan, turns, rows, executor."""
