"""Measuring: fresh processes, calibrated batches, interleaved rounds."""
