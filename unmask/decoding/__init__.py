"""The denoising loop and its parts: canvas, plan, turns, rows, executor."""
