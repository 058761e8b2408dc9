"""The configuration of a language model, where users of models import it from."""

from tritium.families.config import STORED, Config
from tritium.families.fields import MOST, MOST_LAYERS

__all__ = ["MOST", "MOST_LAYERS", "STORED", "Config"]
