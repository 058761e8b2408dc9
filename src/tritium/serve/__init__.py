"""An OpenAI-compatible server for one model.

`from tritium.serve import Server` is the way in.
"""

from tritium.serve.asgi import create_app
from tritium.serve.server import Server, serve

__all__ = ["Server", "create_app", "serve"]
