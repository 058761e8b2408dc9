"""Files of PyTorch models: ternary model files read and written, and adapters in PEFT's format.

Layers are those of `tritium.torch`; formats are those of `tritium.io`.
"""
