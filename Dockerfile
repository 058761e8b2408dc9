# `tritium serve` in a container: a wheel is built in one stage and installed in another that has no compiler.
#
#   docker build -t tritium .
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8080:8080 \
#     -v "$PWD/models:/models:ro" -v "$PWD/key:/run/secrets/api-key:ro" tritium /models/model.gguf
#
# The key file must be readable for user 10001. Options of `tritium serve` follow the model; without a model the small one of the package is served.
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /source
# For every CPU: the image may run elsewhere.
RUN TRITIUM_ISAS=all python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim-bookworm
LABEL org.opencontainers.image.title="tritium" \
      org.opencontainers.image.description="An OpenAI-compatible server for ternary (1.58-bit) models" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/tritium-ml/tritium"
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir "$(ls /wheels/tritium-*.whl)[run]" && rm -rf /wheels
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin tritium
# What is tuned and cached goes where a read-only container may write.
ENV PYTHONUNBUFFERED=1 HOME=/tmp XDG_CACHE_HOME=/tmp/cache XDG_DATA_HOME=/tmp/data
USER 10001
VOLUME /models
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["tritium", "serve", "--host", "0.0.0.0", "--port", "8080", "--api-key-file", "/run/secrets/api-key"]
