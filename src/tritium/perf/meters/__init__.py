"""Meters and sensors: a value, or the reason why there is none."""
