"""Measurements side by side, always as ratios within one run."""
