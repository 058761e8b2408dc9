"""Discrete Fourier transforms by the array API standard. NumPy computes them: f32 in f32, f64 in f64.

Knows nothing of graphs: all of it can be traced.
"""

from tritium.fft.transforms import (
    fft,
    fftfreq,
    fftn,
    fftshift,
    hfft,
    ifft,
    ifftn,
    ifftshift,
    ihfft,
    irfft,
    irfftn,
    rfft,
    rfftfreq,
    rfftn,
)

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft", "rfftfreq",
    "rfftn",
]  # fmt: skip
